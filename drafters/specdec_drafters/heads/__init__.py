"""Heads that draft from the target's last hidden state: the drafter, its file format and its trainer."""
