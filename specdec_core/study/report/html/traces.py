"""The traces of a report: the first steps of each run, as interactive figures. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from specdec_core.study.report.formats import visible
from specdec_core.trace.figure import trace_figure

if TYPE_CHECKING:
    from specdec_core.study.report.result_files import Traces
    from specdec_core.study.report.summary import RunSummary


@dataclass(frozen=True)
class RunTrace:
    """The trace of a run.

    Attributes:
        run: Name of the run.
        anchor: The element of the page with the figure.
        prompt: Number of the prompt, from 0.
        prompt_id: Its id; empty if the page has no prompts.
        tokens: Number of its tokens.
        steps: Number of its steps.
        figure: The interactive figure.
    """

    run: str
    anchor: str
    prompt: int
    prompt_id: str
    tokens: int
    steps: int
    figure: Markup


def run_traces(runs: Sequence[RunSummary], traces: Traces, task: int, prompts: Sequence[str]) -> list[RunTrace]:
    """Return the traces of the runs of a task.

    Args:
        runs: The runs.
        traces: The traces by task and run.
        task: Number of the task.
        prompts: The ids of its prompts.
    """
    found = []
    for number, run in enumerate(runs):
        trace = traces.get((run.task, run.name))
        if trace is None:
            continue
        index = trace["prompt"]
        name = prompts[index] if index < len(prompts) else ""
        # The figure escapes the texts of tokens.
        drawn = Markup(visible(trace_figure(trace)))
        anchor = f"trace-{task}-{number}"
        found.append(RunTrace(run.name, anchor, index, name, trace["tokens"], len(trace["steps"]), drawn))
    return found
