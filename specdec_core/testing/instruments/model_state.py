"""All of a model and its tokenizer that a plugin could change."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch


def state_of(model: Any, tokenizer: Any = None) -> dict[str, Any]:
    """Return the state of a Hugging Face model by name: weights (copied), modes, hooks, configs, tokenizer."""
    state: dict[str, Any] = {name: value.detach().clone() for name, value in model.state_dict().items()}
    state |= {f"{name}.requires_grad": weight.requires_grad for name, weight in model.named_parameters()}
    for name, module in model.named_modules():
        state[f"{name or 'model'}.training"] = module.training
        hooks = module._forward_hooks, module._forward_pre_hooks
        state[f"hooks of {name or 'model'}"] = tuple(map(len, hooks))
    state["config"] = copy.deepcopy(model.config.to_dict())
    state["generation config"] = copy.deepcopy(model.generation_config.to_dict())
    if tokenizer is not None:
        state["tokenizer.special_tokens_map"] = dict(tokenizer.special_tokens_map)
        state["tokenizer.padding_side"] = tokenizer.padding_side
        state["tokenizer.truncation_side"] = tokenizer.truncation_side
        state["tokenizer's number of tokens"] = len(tokenizer)
    return state


def changed(before: Mapping[str, Any], model: Any, tokenizer: Any = None) -> list[str]:
    """Return the names of what is now unlike it was, sorted.

    Args:
        before: What `state_of` returned.
        model: The same model.
        tokenizer: The same tokenizer, where one was given.
    """
    after = state_of(model, tokenizer)
    return sorted(name for name in before.keys() | after.keys() if not _equal(before.get(name), after.get(name)))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return bool(one == other)
