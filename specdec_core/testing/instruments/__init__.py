"""What checks work with: tiny targets, sessions led by hand, imagined batches, and statistics."""
