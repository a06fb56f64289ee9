"""DFlash heads, in the format of the speculators package: the drafter and the head."""
