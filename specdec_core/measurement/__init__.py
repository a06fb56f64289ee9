"""Measurement: alpha, c and T(k), without decoding speculatively."""
