"""Experiments without running the target: record its texts once, replay drafters on them, and tune."""
