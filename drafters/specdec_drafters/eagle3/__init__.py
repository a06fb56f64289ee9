"""EAGLE-3 heads, in the format of the speculators package: the drafter, the head and its trainer."""
