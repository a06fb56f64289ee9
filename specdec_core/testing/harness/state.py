"""State that a plugin must leave alone: the target's, the process's, and memory that its sessions held."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from specdec_core.decoding.guard.global_settings import CHECKED, read, restore
from specdec_core.interface import TargetFeatures

Reference: TypeAlias = Callable[[], object | None]
"""Returns an object while it is alive, without keeping it alive."""


def weak_reference(thing: object) -> Reference | None:
    """Return a weak reference to an object; None where its class does not support them."""
    try:
        return weakref.ref(thing)
    except TypeError:  # a class with __slots__ may not allow it
        return None


def is_leaked(reference: Reference | None) -> bool:
    """Whether something other than the object itself still refers to it."""
    if reference is None or reference() is None:
        return False
    gc.collect()  # a reference cycle within the object is not a leak
    return reference() is not None


def tensor_bytes() -> int:
    """Return the size in bytes of all tensors that are alive and not frozen by `gc.freeze`."""
    gc.collect()
    return sum(
        thing.numel() * thing.element_size() for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)
    )


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Hide the objects that exist now from the garbage collector, so that `gc.collect` looks at new ones only.

    They stay hidden where the process had frozen some before, for only all objects can be unfrozen.
    """
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


def model_state(model: Any, tokenizer: Any = None, features: TargetFeatures | None = None) -> dict[str, Any]:
    """Return the state of a model by name: weights (copied), modes, hooks, configs, tokenizer, embeddings."""
    state: dict[str, Any] = {name: value.detach().clone() for name, value in model.state_dict().items()}
    state |= {f"{name}.requires_grad": weight.requires_grad for name, weight in model.named_parameters()}
    for name, module in model.named_modules():
        state[f"{name or 'model'}.training"] = module.training
        hooks = module._forward_hooks, module._forward_pre_hooks
        state[f"hooks of {name or 'model'}"] = tuple(map(len, hooks))
    state["config"] = copy.deepcopy(model.config.to_dict())
    state["generation config"] = copy.deepcopy(model.generation_config.to_dict())
    if features is not None:
        state["features.input_embeddings"] = features.input_embeddings.clone()
        state["features.output_embeddings"] = features.output_embeddings.clone()
    if tokenizer is not None:
        state["tokenizer.special_tokens_map"] = dict(tokenizer.special_tokens_map)
        state["tokenizer.padding_side"] = tokenizer.padding_side
        state["tokenizer.truncation_side"] = tokenizer.truncation_side
        state["len(tokenizer)"] = len(tokenizer)
    return state


def changed_state(
    before: Mapping[str, Any], model: Any, tokenizer: Any = None, features: TargetFeatures | None = None
) -> list[str]:
    """Return the names of what has changed since `model_state` returned `before`, sorted."""
    after = model_state(model, tokenizer, features)
    return sorted(name for name in before.keys() | after.keys() if not _equal(before.get(name), after.get(name)))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return bool(one == other)


def global_state() -> dict[str, Any]:
    """Return the global state of the process, by name."""
    return {one.name: one.comparable(one.read()) for one in CHECKED}


def changed_globals(before: Mapping[str, Any]) -> list[str]:
    """Return the names of what has changed since `global_state` returned `before`."""
    return [name for name, value in global_state().items() if value != before[name]]


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore the global state at the end, so that one plugin cannot spoil the checks of the next."""
    before = read(CHECKED)
    try:
        yield
    finally:
        restore(CHECKED, before)
