"""Settings of the thread and of the process that a plugin must leave as they were."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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


OF_THREAD = (
    GlobalSetting("torch's autocast", _autocast, _set_autocast),
    GlobalSetting("torch's default device", _default_device, _set_default_device),
    GlobalSetting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    GlobalSetting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
)
"""Settings that change how a thread computes; quick to read, so restored after each call into a plugin."""
OF_PROCESS = (
    GlobalSetting("the working directory", os.getcwd, os.chdir),
    GlobalSetting("signal handlers", _signal_handlers, _set_signal_handlers),
)
"""Settings that all threads share; restored after each call into a drafter."""
CHECKED = (
    *OF_THREAD,
    *OF_PROCESS,
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
"""Settings that the kit checks."""


def read(settings: Iterable[GlobalSetting]) -> list[Any]:
    """Return the values of settings."""
    return [one.read() for one in settings]


def restore(settings: Iterable[GlobalSetting], before: Iterable[Any]) -> list[str]:
    """Set settings to what `read` returned before; return the names of those that had changed."""
    changed = []
    for one, value in zip(settings, before, strict=True):
        if one.comparable(one.read()) != one.comparable(value):
            one.write(value)
            changed.append(one.name)
    return changed
