"""Chains for tests, of any drafters."""

from specdec_drafters.chain import ChainDrafter
from specdec_drafters.settings import ChainConfig
from tests.toys import target_info

V = 8


def chain(*drafters, vocab=V, **settings):
    return ChainDrafter(ChainConfig(drafters=drafters, **settings), target_info(vocab))
