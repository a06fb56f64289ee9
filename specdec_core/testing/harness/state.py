"""State that a plugin must leave alone: the target's, the process's, and memory that its sessions held."""

from __future__ import annotations

import copy
import gc
import os
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

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
    gc.collect()  # a reference cycle within the object is no leak
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


def model_state(model: Any, tokenizer: Any = None) -> dict[str, Any]:
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
        state["len(tokenizer)"] = len(tokenizer)
    return state


def changed_state(before: Mapping[str, Any], model: Any, tokenizer: Any = None) -> list[str]:
    """Return the names of what has changed since `model_state` returned `before`, sorted."""
    after = model_state(model, tokenizer)
    return sorted(name for name in before.keys() | after.keys() if not _equal(before.get(name), after.get(name)))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    return bool(one == other)


@dataclass(frozen=True)
class _Global:
    """A global of the process: how to read it, how to set it, and its comparable form."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    comparable: Callable[[Any], Any] = lambda value: value


def _with_bytes(value: Any) -> Any:
    """Return nested mappings as tuples and arrays as bytes, which are quick to compare."""
    if isinstance(value, Mapping):
        return tuple((name, _with_bytes(part)) for name, part in value.items())
    return value.tobytes() if isinstance(value, np.ndarray) else value


_GLOBALS: dict[str, _Global] = {
    "torch's random state": _Global(torch.get_rng_state, torch.set_rng_state, torch.Tensor.tolist),
    "python's random state": _Global(random.getstate, random.setstate),
    # numpy's legacy generator is the one that all of a process shares.
    "numpy's random state": _Global(lambda: np.random.get_state(legacy=False), np.random.set_state, _with_bytes),
    "torch's number of threads": _Global(torch.get_num_threads, torch.set_num_threads),
    "torch's default dtype": _Global(torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": _Global(torch.get_default_device, torch.set_default_device, str),
    "torch's matmul precision": _Global(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's gradient mode": _Global(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": _Global(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "environment variables": _Global(lambda: dict(os.environ), lambda before: _set_environment(before)),
}


def _set_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def global_state() -> dict[str, Any]:
    """Return the global state of the process, by name."""
    return {name: one.comparable(one.read()) for name, one in _GLOBALS.items()}


def changed_globals(before: Mapping[str, Any]) -> list[str]:
    """Return the names of what has changed since `global_state` returned `before`."""
    return [name for name, value in global_state().items() if value != before[name]]


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore the global state at the end, so that one plugin cannot spoil the checks of the next."""
    values = {name: one.read() for name, one in _GLOBALS.items()}
    before = {
        name: one.comparable(value) for (name, value), one in zip(values.items(), _GLOBALS.values(), strict=True)
    }
    try:
        yield
    finally:
        for name in changed_globals(before):
            _GLOBALS[name].write(values[name])
