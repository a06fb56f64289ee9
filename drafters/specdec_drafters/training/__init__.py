"""What the trainers share: material, losses, the loop, checkpoints and the learning curve."""
