"""The suffix drafter (suffix decoding)."""
