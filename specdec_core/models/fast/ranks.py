"""The processes that torchrun starts for one model: rank 0 decodes, the others compute their share of its passes.

The logits of two ranks may differ in their last bits, and the times that a controller reads always do. Ranks that
each drew and decided for themselves would part sooner or later, and wait for each other for ever. So rank 0 alone
runs the decoding loop, with drafters, controllers and random numbers. Before each forward pass it broadcasts the
tokens that it is about to read; the other ranks read them too, and throw their logits away.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from threading import RLock
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from specdec_core.interface.errors import ModelError, SpecdecError
from specdec_core.models.packages import require

Command: TypeAlias = tuple[Any, ...]
"""A command for a rank, and its arguments, as plain data."""

_PATIENCE = timedelta(days=20)
"""How long a rank waits for rank 0, which may train, or wait for somebody at a keyboard."""


class Leader:
    """Rank 0's line to the other ranks.

    Args:
        group: A process group on the CPU, of all ranks.

    Attributes:
        group: The group.
        lock: Held from sending a command until rank 0 has done its part, so that threads do not mix theirs.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.lock = RLock()
        self._posted: deque[Command] = deque()
        self._keys = count()

    def key(self) -> int:
        """Return a new name for a model or a session."""
        return next(self._keys)

    def post(self, *command: Any) -> None:
        """Send a command with the next that runs; nothing is computed together."""
        self._posted.append(command)

    def run(self, *command: Any) -> None:
        """Send a command that all ranks carry out together; the caller does the part of rank 0, under `lock`."""
        self._posted.append(command)
        commands = [self._posted.popleft() for _ in range(len(self._posted))]
        dist.broadcast_object_list([commands], src=0, group=self.group)

    def end(self) -> None:
        """Let the other ranks end."""
        with suppress(RuntimeError):  # they may have ended
            self.run("end")
            dist.destroy_process_group()


@dataclass(frozen=True)
class Share:
    """Where the rest of a model's weights is.

    Attributes:
        leader: The line to the ranks that hold it.
        model: The name under which they hold it.
    """

    leader: Leader
    model: int

    def free_with(self, model: Any) -> None:
        """Let the other ranks free their shares when rank 0 frees its own."""
        weakref.finalize(model, self.leader.post, "free", self.model)


class _Process:
    """The role of this process: nothing yet, rank 0 of several, or one of the others."""

    leader: Leader | None = None
    following: Any = None  # the process group, on the other ranks


def lead_or_follow(size: int | None = None) -> Leader | None:
    """Join the processes that torchrun started; return the line to the others on rank 0.

    On every other rank this returns only while a command of rank 0 is carried out, and then None: it serves rank 0
    until that ends, and then ends the process with `SystemExit`.

    Args:
        size: The number of processes that are needed; None for as many as there are.

    Raises:
        ModelError: torchrun started another number of processes, or none.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if size is not None and started != size:
        given = f"torchrun started {started}" if started > 1 else "this is one process"
        raise ModelError(
            f"tensor_parallel: {size} needs {size} processes, but {given}. Run `torchrun --no-python "
            f"--nproc-per-node {size} specdec ...`, or `torchrun --nproc-per-node {size} script.py`."
        )
    if _Process.leader is None and _Process.following is None:
        group = _join()
        if dist.get_rank():
            _follow(group)
        _Process.leader = Leader(group)
        atexit.register(_Process.leader.end)
    return _Process.leader


def _join() -> Any:
    """Connect the processes; return a group on the CPU, for commands."""
    if not dist.is_initialized():
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    return dist.new_group(backend="gloo", timeout=_PATIENCE)


def _follow(group: Any) -> None:
    """Do what rank 0 says until it ends.

    Raises:
        SystemExit: It has ended.
    """
    from specdec_core.models.fast.tensor_parallel import Follower

    _Process.following, follower = group, Follower()
    while True:
        received: list[Any] = [None]
        try:
            dist.broadcast_object_list(received, src=0, group=group)
        except RuntimeError as error:
            raise SystemExit(f"rank {dist.get_rank()}: rank 0 has ended without a word ({error}).") from error
        for name, *arguments in received[0]:
            if name == "end":
                dist.destroy_process_group()
                raise SystemExit(0)
            getattr(follower, name)(*arguments)


def _agree(group: Any, problem: str | None) -> None:
    """Exchange what went wrong where all ranks did the same.

    Args:
        group: A process group on the CPU.
        problem: What went wrong on this rank; None for nothing.

    Raises:
        ModelError: Nothing went wrong on this rank, but on another one.
    """
    problems: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    others = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
    if problem is None and others:
        raise ModelError("; ".join(others))


def check_sharing(size: int | None, **settings: Any) -> None:
    """Reject settings that weights shared by several processes cannot have.

    Args:
        size: The number of processes; None for one, which may have any.
        **settings: Arguments of `load_model`.

    Raises:
        ModelError: With the reason, or without accelerate, which transformers needs for it.
    """
    if size is None:
        return
    for name, value in settings.items():
        if value not in (None, "auto", False):
            raise ModelError(f"'tensor_parallel' and {name!r} are both given; use one of them.")
    require("accelerate", "tensor_parallel", "specdec-core[accelerate]")


@contextmanager
def sharing(size: int | None, settings: Mapping[str, Any]) -> Iterator[Share | None]:
    """Load a model on all ranks at once: rank 0 tells the others, and all raise if one does.

    Args:
        size: The number of ranks; None for a model that is not shared, for which nothing happens.
        settings: The arguments of `load_model`, for the other ranks.

    Yields:
        Where the rest of the model will be; None on the other ranks.

    Raises:
        ModelError: There are not so many ranks, or another one failed.
    """
    if size is None:
        yield None
        return
    leader = lead_or_follow(size)
    group = _Process.following if leader is None else leader.group
    share = None if leader is None else Share(leader, leader.key())
    if share is not None:
        share.leader.lock.acquire()
        share.leader.run("load", share.model, dict(settings))
    try:
        try:
            yield share
        except SpecdecError as error:
            _agree(group, str(error))
            raise
        _agree(group, None)
    finally:
        if share is not None:
            share.leader.lock.release()
