"""Heads that guess from the target's last hidden state: the drafter, its file, and how they are trained."""
