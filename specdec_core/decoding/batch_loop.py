"""The loop over the steps of a batch: counts, observers, warnings and the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

import torch

from specdec_core.decoding.counts import Tally
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.observers import Observer
from specdec_core.interface import SessionInfo, StepReport
from specdec_core.interface.errors import OutOfMemoryError
from specdec_core.models.device import available_memory, is_out_of_memory


class Steps(Protocol):
    """A batch that is decoded step by step: `Batch` or `BeamBatch`."""

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""

    def step(self) -> StepReport:
        """Take a step; return the report."""

    def close(self) -> None:
        """Free what the batch holds."""


S = TypeVar("S", bound=Steps)
R = TypeVar("R")
T = TypeVar("T")


def finished(run: Generator[T, None, R], show: Callable[[T], object] | None = None) -> R:
    """Take all steps of a run, and call a function with what each yields; return the run's result."""
    while True:
        try:
            step = next(run)
        except StopIteration as end:
            result: R = end.value
            return result
        if show is not None:
            show(step)


def steps_of(
    open_batch: Callable[[PluginGuard], tuple[SessionInfo, S]],
    prompts: Sequence[Sequence[int]],
    observers: Sequence[Observer],
    began: float,
    *,
    strict: bool,
) -> Generator[StepReport, None, tuple[S, PluginGuard, Tally]]:
    """Yield the reports of a batch's steps, and close it at the end, or where the caller leaves.

    Args:
        open_batch: Opens the batch; returns what drafters know about it, too.
        prompts: The token ids of its prompts, for observers.
        observers: Called at the beginning and after every step.
        began: When the call began, of `perf_counter`.
        strict: Raise when a plugin fails.

    Returns:
        The batch, the guard with what plugins did wrong, and the counts of the steps.
    """
    guard = PluginGuard(strict=strict)
    info, batch = open_batch(guard)
    tally = Tally(len(prompts), info.max_gamma, began)
    try:
        for observer in observers:
            observer.on_start(info, prompts)
        while not batch.done:
            report = batch.step()
            tally.add(report)
            guard.warn()
            for observer in observers:
                observer.on_step(report)
            yield report
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory(info) from error
    finally:
        batch.close()
    guard.warn()
    return batch, guard, tally


def _out_of_memory(info: SessionInfo) -> OutOfMemoryError:
    free = available_memory(torch.device(info.device))
    left = "" if free is None else f", of which {free / 1e9:.1f} GB are free without this batch's last tensors"
    return OutOfMemoryError(
        f"the memory of {info.device}{left}, does not hold a batch of {info.batch_size} sequences of up to "
        f"{info.capacity} tokens. Decode fewer prompts together, or fewer new tokens; `specdec validate --memory` "
        "forecasts what a study needs."
    )
