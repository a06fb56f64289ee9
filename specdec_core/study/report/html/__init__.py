"""The HTML report, with its charts and pictures."""
