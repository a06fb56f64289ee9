"""MTP layers (multi-token prediction), in the format of the speculators package: the drafter and the layer."""
