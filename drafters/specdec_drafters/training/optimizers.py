"""Optimizers, the learning rate schedule, and optimizer state as plain tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

WARM_UP, FALL = 0.02, 0.5  # shares of the run


def learning_rate_share(done: float) -> float:
    """Return the learning rate after the share `done` of the run, relative to its peak."""
    return max(0.0, min(1.0, done / WARM_UP, (1.0 - done) / FALL))


def make_optimizers(
    parameters: Mapping[str, Tensor], learning_rate: float, embedding_names: Collection[str] = ()
) -> list[Optimizer]:
    """Return Muon for matrices and AdamW for the rest, or AdamW for everything if this torch has no Muon.

    Muon's steps are scaled to the size of AdamW's, so that one learning rate suits both. It helps short runs; it
    does not suit embeddings, of which a step touches only a few rows.

    Args:
        parameters: The parameters by name.
        learning_rate: Learning rate of both.
        embedding_names: Names of input and output embedding matrices, which AdamW trains.
    """
    body = [weight for name, weight in parameters.items() if weight.dim() == 2 and name not in embedding_names]
    muon = getattr(torch.optim, "Muon", None)
    if muon is None or not body:
        return [_adamw(list(parameters.values()), learning_rate)]
    inside = {id(weight) for weight in body}
    rest = [weight for weight in parameters.values() if id(weight) not in inside]
    first: Optimizer = muon(body, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [first, _adamw(rest, learning_rate)] if rest else [first]


def _adamw(weights: list[Tensor], learning_rate: float) -> Optimizer:
    return torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def flatten(optimizers: Sequence[Optimizer]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of optimizers as tensors and as JSON values, by name."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, optimizer in enumerate(optimizers):
        for weight, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                key = f"{index}.{weight}.{name}"
                if isinstance(value, Tensor):
                    tensors[key] = value
                else:
                    numbers[key] = value
    return tensors, numbers


def restore(optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Load the result of `flatten` into optimizers made in the same way.

    Raises:
        ValueError: The state belongs to other optimizers.
    """
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for key, value in {**tensors, **numbers}.items():
        index, weight, name = key.split(".", 2)
        if int(index) >= len(states):
            raise ValueError("it has the state of more optimizers")
        states[int(index)].setdefault(int(weight), {})[name] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
