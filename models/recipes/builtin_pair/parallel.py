"""Train with one process per core, each with one thread and its share of every batch.

Threads within an operation wait for each other thousands of times per step, which is slow if other programs use
the cores. Processes synchronize once per step, to average their gradients.
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
    """Run `work(arguments)` in `arguments.processes` processes, and wait for all of them."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            worker,
            args=(work, arguments, f"file://{folder}/meeting-point"),
            nprocs=arguments.processes,
        )


def worker(rank: int, work: Work, arguments: argparse.Namespace, meeting_point: str) -> None:
    """Join the process group and do the work."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=arguments.processes)
    try:
        work(arguments)
    finally:
        distributed.destroy_process_group()


def is_first() -> bool:
    """Return whether this is the process that prints and saves."""
    return distributed.get_rank() == 0


def own_share(rows: torch.Tensor) -> torch.Tensor:
    """Return this process's rows of a batch whose size is a multiple of the number of processes."""
    return rows[distributed.get_rank() :: distributed.get_world_size()]


def average_gradients(model: torch.nn.Module, numbers: list[float]) -> list[float]:
    """Average the gradients over the processes, in place; return the averages of further numbers."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(numbers)])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    pieces = flat[: len(flat) - len(numbers)].split([gradient.numel() for gradient in gradients])
    for gradient, averaged in zip(gradients, pieces, strict=True):
        gradient.copy_(averaged.view_as(gradient))
    return flat[len(flat) - len(numbers) :].tolist()
