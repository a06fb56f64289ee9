"""Chains for tests, of any drafters."""

from specdec_drafters.chain.config import ChainConfig
from specdec_drafters.chain.drafter import ChainDrafter
from tests.toys import target_info

V = 8


def chain(*drafters, vocab=V, **settings):
    return ChainDrafter(ChainConfig(drafters=drafters, **settings), target_info(vocab))
