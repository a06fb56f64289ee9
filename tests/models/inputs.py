"""Other ways to run a family, sources for encoders, and random tokens."""

import torch

from tests.tiny import ENCODER_DECODER

OTHERWISE = ("t5 near", *(f"{family} {way}" for family in ENCODER_DECODER for way in ("eager", "apart")))
"""T5 with few distance buckets, eager attention with float masks, and one forward pass per row."""
SOURCES = ((3, 4, 5, 6, 7), (8, 9), (10, 11, 12))


def random_tokens(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 40, (count,), generator=generator).tolist()
