"""The gamma that gives most tokens a second: what is accepted and what it takes, estimated while decoding."""

from specdec_plugins.cost_aware.controller import CostAwareGamma

__all__ = ["CostAwareGamma"]
