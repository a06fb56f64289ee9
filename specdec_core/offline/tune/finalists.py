"""The study of the finalists of a race, which are timed live beside the baseline, and the choice of the winner.

Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specdec_core.study import BASELINE, Study
from specdec_core.study.config.prompts import conversations

if TYPE_CHECKING:
    from specdec_core.study import Task
    from specdec_core.study.report.summary import RunSummary


@dataclass(frozen=True)
class Choice:
    """The winner of a task.

    Attributes:
        run: Its name.
        tied: Runs that cannot be told from it by their timings.
        sure: How sure it is, in a sentence or two.
        rows: Summaries of the runs that were timed, the baseline first; empty if none was.
        pays: Whether it was faster than the baseline; None if it was not timed.
    """

    run: str
    tied: tuple[str, ...]
    sure: str
    rows: tuple[RunSummary, ...] = ()
    pays: bool | None = None


def finals(study: Study, finalists: Mapping[str | None, Sequence[str]], prompts: int | None) -> Study:
    """Return a study of the finalists alone.

    Args:
        study: The study of all candidates.
        finalists: Names of the finalists of each task; tasks without any are left out.
        prompts: Number of prompts, from the first, that each is timed on; None for all. Conversations are not cut.
    """
    tasks = tuple(_task(task, finalists[task.name], prompts) for task in study.tasks if task.name in finalists)
    named = {name for names in finalists.values() for name in names}
    runs = tuple(run for run in study.runs if run.name == BASELINE or run.name in named)
    return replace(study, tasks=tasks, runs=runs)


def _task(task: Task, names: Sequence[str], prompts: int | None) -> Task:
    runs = tuple(run for run in task.runs if run.name == BASELINE or run.name in names)
    if prompts is None or prompts >= len(task.prompts):
        return replace(task, runs=runs)
    whole = [turns for turns in conversations(task.prompts) if turns.start < prompts]
    fewer = task.prompts_config.model_copy(update={"limit": len(whole)})
    return replace(task, runs=runs, prompts=task.prompts[: whole[-1].stop], prompts_config=fewer)


def choose(rows: Sequence[RunSummary], finalists: Sequence[str]) -> Choice:
    """Return the winner among runs that were timed.

    Args:
        rows: The summaries of the runs of a task, the baseline first.
        finalists: Their names, from the one that is expected to be fastest.
    """
    from specdec_core.study.report.verdict import fastest, verdict

    found = verdict(rows)
    ranked = fastest(rows)
    says = " ".join([f"Timed live: {found.answer}", *found.errors, *found.failures])
    if not ranked:
        says += " The winner is the run that is expected to be fastest."
        return Choice(finalists[0], (), says, tuple(rows))
    winner, *tied = ranked
    pays = winner.speed.speedup is not None and winner.speed.speedup > 1
    return Choice(winner.name, tuple(one.name for one in tied), says, tuple(rows), pays)


def expected(finalists: Sequence[str]) -> Choice:
    """Return the winner where nothing is timed: the run that is expected to be fastest."""
    first, *others = finalists
    says = "Nothing was timed live: this is the run that is expected to be fastest."
    if others:
        listed = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
        says += f" The race cannot tell it from {listed}."
    return Choice(first, tuple(others), says)
