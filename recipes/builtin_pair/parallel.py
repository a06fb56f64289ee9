"""Train with one process a core, each with one thread and its share of every batch.

Threads inside an operation wait for one another thousands of times a step, which is ruinous on cores
that other programs also use. Processes meet once a step, to average their gradients.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Work = Callable[[argparse.Namespace], None]


def run(work: Work, arguments: argparse.Namespace) -> None:
    """Call `work(arguments)` in `arguments.processes` processes, and wait for all of them."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            worker,
            args=(work, arguments, f"file://{folder}/meeting-point"),
            nprocs=arguments.processes,
        )


def worker(rank: int, work: Work, arguments: argparse.Namespace, meeting_point: str) -> None:
    """Join the group and do the work, in a process of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=arguments.processes)
    try:
        work(arguments)
    finally:
        distributed.destroy_process_group()


def is_first() -> bool:
    """Say whether this is the process that prints and saves."""
    return distributed.get_rank() == 0


def own_share(rows: torch.Tensor) -> torch.Tensor:
    """Return this process's rows of a batch whose size is a multiple of the number of processes."""
    return rows[distributed.get_rank() :: distributed.get_world_size()]


def average_gradients(model: torch.nn.Module, numbers: list[float]) -> list[float]:
    """Average the gradients in place, and some numbers beside them, over the processes."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(numbers)])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    pieces = flat[: len(flat) - len(numbers)].split([gradient.numel() for gradient in gradients])
    for gradient, averaged in zip(gradients, pieces, strict=True):
        gradient.copy_(averaged.view_as(gradient))
    return flat[len(flat) - len(numbers) :].tolist()
