"""A CUDA device that is simulated on the CPU, and counts what makes the host wait.

`install()` puts it in place of `torch.cuda`, for the whole process. README.md says what it refuses and counts.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch

from . import build, torch_cuda

__all__ = ["Counts", "counted", "install", "installed", "late_copies", "launches", "missing", "prepare"]

_native: ModuleType | None = None
_HERE = str(Path(__file__).parent)
_counting: list[Counts] = []


@dataclass
class Counts:
    """What a block did on the device.

    Attributes:
        launches: Kernels, copies among them, and one for each replay of a graph; no views.
        allocations: Tensors that got memory of the device.
        events: How often `(kind, operator, line)` occurred; the line is the innermost one of the project. A kind
            is `fetch` (a value or a copy for which the host waits), `fetch_later` (a copy to the host without a
            wait), `upload` (a copy from the host that blocks), `upload_pageable` or `upload_pinned` (copies that
            do not), `synchronize`, or `replay` (of a graph).
    """

    root: str
    launches: int = 0
    allocations: int = 0
    events: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def of(self, *kinds: str) -> int:
        """Return the number of events of some kinds."""
        return sum(count for (kind, _, _), count in self.events.items() if kind in kinds)

    @property
    def waits(self) -> int:
        """How often the host waited for the device."""
        return self.of("fetch", "upload", "synchronize")

    def lines(self, *kinds: str) -> str:
        """Return the lines that caused events of some kinds, the most frequent first."""
        found = [(count, *event) for event, count in self.events.items() if event[0] in kinds]
        return "\n".join(
            f"{count:5} {kind} {operator} {line}" for count, kind, operator, line in sorted(found)[::-1]
        )


def missing() -> str | None:
    """Return why there can be no simulated device, or None."""
    if torch.backends.cuda.is_built():
        return "the simulated GPU needs a build of torch without CUDA"
    if build.compiler() is None:
        return "the simulated GPU needs a C++ compiler"
    return None


def prepare(device: str) -> str | None:
    """Install the device for `cuda:simulated`, and for `cuda` where there is no GPU; return why it cannot be."""
    if device != "cuda:simulated" and torch.cuda.is_available():
        return None
    if (reason := missing()) is None:
        install()
    return reason


def installed() -> bool:
    """Return whether `torch.cuda` is the simulated device."""
    return _native is not None


def install() -> None:
    """Compile the device if need be, and put it in place of `torch.cuda`. This cannot be undone.

    Raises:
        RuntimeError: If `missing()` has a reason, or if the device does not compile.
    """
    global _native
    if installed():
        return
    if (reason := missing()) is not None:
        raise RuntimeError(reason)
    _native = build.load()
    _native.on_event(_on_event)
    for name, value in torch_cuda.names(_native).items():
        setattr(torch.cuda, name, value)
    torch._C._host_emptyCache = lambda: None  # torch.cuda.graph asks for it
    torch.UntypedStorage.clone = _clone_storage  # torch's own has memory of CUDA in a build with CUDA only


def launches() -> int:
    """Return how many kernels were launched so far, copies among them."""
    return _native.launches()


@contextlib.contextmanager
def counted(root: str | Path = ".") -> Iterator[Counts]:
    """Count what a block does on the device, by the lines of the files under `root`.

    Counts may nest, and include what other threads do meanwhile.
    """
    counts = Counts(f"{Path(root).resolve()}/")
    before = _native.launches(), _native.allocations()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _counting.remove(counts)
        counts.launches = _native.launches() - before[0]
        counts.allocations = _native.allocations() - before[1]


@contextlib.contextmanager
def late_copies() -> Iterator[None]:
    """Let non-blocking copies arrive when the host next waits, as they may on a GPU.

    Until then a copy to the host holds 0x7e in each byte. Waiting raises if pinned memory changed after a
    non-blocking copy from it to the device was begun.
    """
    _native.set_late(True)
    try:
        yield
    finally:
        _native.set_late(False)


def _clone_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    fresh = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device)
    return fresh.untyped_storage().copy_(storage)


def _on_event(kind: str, operator: str) -> None:
    for counts in _counting:
        counts.events[kind, operator, _line(counts.root)] += 1


def _line(root: str) -> str:
    """Return the innermost line of a file under `root`, or nothing: a thread of autograd has none."""
    try:
        frame = sys._getframe(2)
    except ValueError:
        return ""
    while frame is not None and not (
        frame.f_code.co_filename.startswith(root) and not frame.f_code.co_filename.startswith(_HERE)
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(root)}:{frame.f_lineno}" if frame is not None else ""
