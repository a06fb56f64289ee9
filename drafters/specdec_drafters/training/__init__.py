"""Shared parts of the trainers: data, losses, the loop, checkpoints and the learning curve."""
