"""Replaying drafters on recorded texts: the expected results of each, without the target."""
