"""Searching for the drafter and settings with the best expected speed. Importing this imports no torch."""
