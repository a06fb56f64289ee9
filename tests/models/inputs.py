"""Other ways to run a family, sources for encoders, and random tokens."""

import torch

from specdec_core.models import wrap_model
from tests.tiny import ENCODER_DECODER, tiny_model

OTHERWISE = ("t5 near", *(f"{family} {way}" for family in ENCODER_DECODER for way in ("eager", "apart")))
"""T5 with few distance buckets, eager attention with float masks, and one forward pass per row."""
SOURCES = ((3, 4, 5, 6, 7), (8, 9), (10, 11, 12))


def random_tokens(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 40, (count,), generator=generator).tolist()


def run_otherwise(family, device):
    """Return a model of a family, run as one of `OTHERWISE` says, and its sources."""
    family, _, kind = family.partition(" ")
    # With few buckets, the last one, for all larger distances, is reached.
    near = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6} if kind == "near" else {}
    model = tiny_model(family, **near).to(device)
    if kind == "eager":
        model.set_attn_implementation("eager")
    loaded = wrap_model(model).row_by_row() if kind == "apart" else wrap_model(model)
    return loaded, SOURCES if family in ENCODER_DECODER else None
