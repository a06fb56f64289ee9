"""Which optimiser trains which weights, and how their state becomes plain tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

WARM_UP, FALL = 0.02, 0.5  # shares of the whole training


def learning_rate_share(done: float) -> float:
    """Return the share of the highest rate after the share `done` of the training: up, level, down to zero."""
    return max(0.0, min(1.0, done / WARM_UP, (1.0 - done) / FALL))


def make_optimisers(
    parameters: Mapping[str, Tensor], learning_rate: float, apart: Collection[str] = ()
) -> list[Optimizer]:
    """Return Muon for matrices and AdamW for the rest, or AdamW for all where this torch has no Muon.

    Muon's steps are scaled to the size of AdamW's, so that one rate serves both. It makes much of a short
    training; embeddings, of which a step touches a few rows, are not for it.

    Args:
        parameters: By name.
        learning_rate: Of both.
        apart: Names of matrices that AdamW trains all the same: embeddings and output embeddings.
    """
    body = [weight for name, weight in parameters.items() if weight.dim() == 2 and name not in apart]
    muon = getattr(torch.optim, "Muon", None)
    if muon is None or not body:
        return [_adamw(list(parameters.values()), learning_rate)]
    inside = {id(weight) for weight in body}
    rest = [weight for weight in parameters.values() if id(weight) not in inside]
    first: Optimizer = muon(body, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [first, _adamw(rest, learning_rate)] if rest else [first]


def _adamw(weights: list[Tensor], learning_rate: float) -> Optimizer:
    return torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def flatten(optimisers: Sequence[Optimizer]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of optimisers as tensors, and as numbers that JSON can hold, each by a name."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, optimiser in enumerate(optimisers):
        for weight, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                place = f"{index}.{weight}.{name}"
                if isinstance(value, Tensor):
                    tensors[place] = value
                else:
                    numbers[place] = value
    return tensors, numbers


def restore(optimisers: Sequence[Optimizer], tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Put back what `flatten` returned, into optimisers made as those were.

    Raises:
        ValueError: The state is of other optimisers.
    """
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimisers]
    for place, value in {**tensors, **numbers}.items():
        index, weight, name = place.split(".", 2)
        if int(index) >= len(states):
            raise ValueError("the state of more optimisers than there are")
        states[int(index)].setdefault(int(weight), {})[name] = value
    for optimiser, state in zip(optimisers, states, strict=True):
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
