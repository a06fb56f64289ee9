"""State that a plugin must leave alone: the target's, the process's, and memory that its sessions held."""

import copy
import gc
import os
import random
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from specdec_core.interface import TargetFeatures

_HANDLED = (signal.SIGINT, signal.SIGTERM)
_DEVICES = ("cpu", "cuda")


def _environment(before: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _numpy() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return (kind, np.asarray(keys).tolist(), *rest)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's autocast": (
        lambda: list(map(torch.is_autocast_enabled, _DEVICES)),
        lambda before: list(map(torch.set_autocast_enabled, _DEVICES, before)),
    ),
    "torch's default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's random state": (
        lambda: torch.get_rng_state().tolist(),
        lambda state: torch.set_rng_state(torch.tensor(state, dtype=torch.uint8)),
    ),
    "python's random state": (random.getstate, random.setstate),
    # numpy's legacy generator is the one that all of a process shares.
    "numpy's random state": (_numpy, np.random.set_state),
    "the working directory": (os.getcwd, os.chdir),
    "signal handlers": (
        lambda: [signal.getsignal(number) for number in _HANDLED],
        lambda before: list(map(signal.signal, _HANDLED, before)),
    ),
    "environment variables": (lambda: dict(os.environ), _environment),
}
"""Settings of the process that a plugin must leave as they were: how to read and write each."""


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
    return sorted(name for name in before.keys() | after.keys() if not equal(before.get(name), after.get(name)))


def equal(one: Any, other: Any) -> bool:
    """Whether two values, their parts and their tensors are equal."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(equal, one, other))
    if is_dataclass(one):
        return all(equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    return bool(one == other)


def global_state() -> dict[str, Any]:
    """Return the global state of the process, by name."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


def changed_globals(before: Mapping[str, Any]) -> list[str]:
    """Return the names of what has changed since `global_state` returned `before`."""
    return [name for name, value in global_state().items() if value != before[name]]


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore the global state at the end, so that one plugin cannot spoil the checks of the next."""
    before = global_state()
    try:
        yield
    finally:
        for name in changed_globals(before):
            SETTINGS[name][1](before[name])
