"""Replaying drafters on recorded texts: what each would have done, without the target."""
