"""What a process has once: plugins must leave it as it is."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class _Shared:
    """Something of which a process has one: how it is read, how it is set, and what of it can be compared."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    plain: Callable[[Any], Any] = lambda value: value


_SHARED: dict[str, _Shared] = {
    "torch's random numbers": _Shared(torch.get_rng_state, torch.set_rng_state, torch.Tensor.tolist),
    "python's random numbers": _Shared(random.getstate, random.setstate),
    # The generator that numpy shares with everyone is the one that plugins are to leave alone.
    "numpy's random numbers": _Shared(lambda: np.random.get_state(legacy=False), np.random.set_state, repr),
    "torch's number of threads": _Shared(torch.get_num_threads, torch.set_num_threads),
    "torch's default dtype": _Shared(torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": _Shared(torch.get_default_device, torch.set_default_device, str),
    "torch's matmul precision": _Shared(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's gradient mode": _Shared(torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic mode": _Shared(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
    ),
    "the environment's variables": _Shared(lambda: dict(os.environ), lambda before: _set_environment(before)),
}


def _set_environment(before: Mapping[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def shared_state() -> dict[str, Any]:
    """Return the state of what all of a process shares, by name."""
    return {name: one.plain(one.read()) for name, one in _SHARED.items()}


def changes(before: Mapping[str, Any]) -> list[str]:
    """Return the names of what is now unlike it was."""
    return [name for name, value in shared_state().items() if value != before[name]]


@contextmanager
def restored() -> Iterator[None]:
    """Put back in the end what all of a process shares: one plugin must not spoil what is judged after it."""
    before = {name: one.read() for name, one in _SHARED.items()}
    plain = {name: one.plain(value) for (name, value), one in zip(before.items(), _SHARED.values(), strict=True)}
    try:
        yield
    finally:
        for name in changes(plain):
            _SHARED[name].write(before[name])
