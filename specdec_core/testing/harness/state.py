"""State that a plugin must leave alone: the target's, the process's, and memory that its sessions held."""

from __future__ import annotations

import copy
import gc
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from specdec_core.interface import TargetFeatures

_HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a command."""


@dataclass(frozen=True)
class GlobalSetting:
    """A setting of the thread or the process.

    Attributes:
        name: What messages call it.
        read: Returns its value.
        write: Sets it to such a value.
        comparable: Returns a value in a form in which equal values compare equal.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    comparable: Callable[[Any], Any] = lambda value: value


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_autocast(before: tuple[bool, bool]) -> None:
    for device, enabled in zip(("cpu", "cuda"), before, strict=True):
        torch.set_autocast_enabled(device, enabled)


def _default_device() -> torch.device:
    return torch.empty(0).device  # a tenth of the time of torch.get_default_device()


def _set_default_device(before: torch.device) -> None:
    torch.set_default_device(None)
    if _default_device() != before:
        torch.set_default_device(before)


def _signal_handlers() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, _HANDLED))


def _set_signal_handlers(before: tuple[Any, ...]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # no other thread can have changed them, nor can this one
    for number, handler in zip(_HANDLED, before, strict=True):
        if handler is not None:  # one that Python did not install
            signal.signal(number, handler)


def _set_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _with_bytes(value: Any) -> Any:
    """Return nested mappings as tuples and arrays as bytes, which are quick to compare."""
    if isinstance(value, Mapping):
        return tuple((name, _with_bytes(part)) for name, part in value.items())
    return value.tobytes() if isinstance(value, np.ndarray) else value


CHECKED = (
    GlobalSetting("torch's autocast", _autocast, _set_autocast),
    GlobalSetting("torch's default device", _default_device, _set_default_device),
    GlobalSetting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    GlobalSetting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    GlobalSetting("the working directory", os.getcwd, os.chdir),
    GlobalSetting("signal handlers", _signal_handlers, _set_signal_handlers),
    GlobalSetting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    GlobalSetting("torch's random state", torch.get_rng_state, torch.set_rng_state, torch.Tensor.tolist),
    GlobalSetting("python's random state", random.getstate, random.setstate),
    # numpy's legacy generator is the one that all of a process shares.
    GlobalSetting(
        "numpy's random state", lambda: np.random.get_state(legacy=False), np.random.set_state, _with_bytes
    ),
    GlobalSetting(
        "torch's matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    GlobalSetting(
        "torch's deterministic mode",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    GlobalSetting("environment variables", lambda: dict(os.environ), _set_environment),
)
"""Settings that a plugin must leave as they were."""


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
    before = [one.read() for one in CHECKED]
    try:
        yield
    finally:
        for one, value in zip(CHECKED, before, strict=True):
            if one.comparable(one.read()) != one.comparable(value):
                one.write(value)
