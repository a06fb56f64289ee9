"""The report of a study: a single HTML page without external resources.

Its only script is that of traces; without them it has none.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from statistics import mode
from typing import Any, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specdec_core.study.config.grouping import Group
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.study import BASELINE
from specdec_core.study.report import charts
from specdec_core.study.report.certainty import replay_line, replay_of, untimed
from specdec_core.study.report.diagnosis import diagnosis_table
from specdec_core.study.report.expectation import MIN_COUNT
from specdec_core.study.report.formats import visible
from specdec_core.study.report.groups import difference_table, group_tables
from specdec_core.study.report.summary import RunSummary
from specdec_core.study.report.tables import by_task, quality_table, request_table, results_table
from specdec_core.study.report.verdict import verdict
from specdec_core.study.run.finished_repeats import Output
from specdec_core.trace import figure as trace_figures

Outputs: TypeAlias = Mapping[tuple[str | None, str], Sequence[Output]]
"""The outputs by task and run, in the order of the prompts."""
Traces: TypeAlias = Mapping[tuple[str | None, str], Mapping[str, Any]]
"""The trace of each run that has one, by task and run; see `Repeat.trace`."""
MAX_PROMPTS = 5
"""Prompts of a task, or of each group, whose outputs are shown."""
_MAX_PROMPT, _MAX_OUTPUT = 600, 3000
"""Characters of a prompt or reference, and of an output, that are shown."""


def report_page(
    study_name: str,
    summaries: Sequence[RunSummary],
    outputs: Outputs,
    prompts: Mapping[str | None, Sequence[PromptText]],
    traces: Traces | None = None,
) -> str:
    """Return the report of a study as an HTML page; the same arguments give the same page.

    Args:
        study_name: File name of the study, used as the title.
        summaries: The summary of each run, grouped by task, the baseline first in each.
        outputs: The outputs by task and run, in the order of the prompts.
        prompts: The prompts by task; the key None stands for the only task of a study without `tasks`.
        traces: The trace of each run that has one, by task and run.
    """
    tasks = [
        _Section(number, runs, prompts.get(runs[0].task, ()), outputs, traces or {})
        for number, runs in enumerate(by_task(summaries), start=1)
    ]
    page = _environment().get_template("report.html.jinja")
    ruled = any(one.rule is not None for one in summaries)
    return page.render(
        title=study_name,
        tasks=tasks,
        setup=_setup(summaries),
        min_count=MIN_COUNT,
        ruled=ruled,
        banner=" ".join(dict.fromkeys(replay_line(task.replayed) for task in tasks if task.replayed)) or None,
        trace_figures=trace_figures if traces else None,
    )


def _environment() -> Environment:
    # Names, prompts and outputs may contain anything: everything inserted is escaped, and controls are shown.
    environment = Environment(
        loader=PackageLoader("specdec_core.study.report", "templates"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["charts"] = charts
    environment.filters["drawn"] = lambda trace: Markup(visible(trace_figures.trace_figure(trace)))  # escaped
    environment.filters["cut"] = lambda text: _cut(str(text), _MAX_PROMPT)
    return environment


def _setup(summaries: Sequence[RunSummary]) -> dict[str, str]:
    """Return the provenance of the results; if runs differ, each value once."""
    versions = dict.fromkeys(pair for one in summaries for pair in one.versions.items())
    return {
        "device": ", ".join(dict.fromkeys(one.device for one in summaries)),
        "seed": ", ".join(dict.fromkeys(str(one.seed) for one in summaries)),
        "repeats": str(max((one.repeats for one in summaries), default=0)),
        "versions": ", ".join(f"{name} {version}" for name, version in versions),
    }


class _Section:
    """The part of the page about one task.

    Args:
        number: Its number, from 1.
        runs: Its summaries, the baseline first.
        prompts: Its prompts.
        outputs: The outputs by task and run.
        traces: The traces by task and run.
    """

    def __init__(
        self,
        number: int,
        runs: Sequence[RunSummary],
        prompts: Sequence[PromptText],
        outputs: Outputs,
        traces: Traces,
    ) -> None:
        self.number = number
        self.runs = runs
        self.prompts = _shown(prompts)
        self._written = {run.name: outputs.get((run.task, run.name), ()) for run in runs}
        found = (traces.get((run.task, run.name)) for run in runs)
        # By run: the element of the page with the figure, and the trace.
        self.traces = {
            run.name: (f"trace-{number}-{index}", trace)
            for index, (run, trace) in enumerate(zip(runs, found, strict=True))
            if trace is not None
        }
        self.name = runs[0].task
        self.replayed = replay_of(runs)
        self.verdict = verdict(runs)
        self.speed_scale = charts.speed_scale(runs)
        self.time_scale = charts.time_scale(runs)
        sound = [one for one in runs if one.status == "ok"]
        self.alphas = [(one.name, curve) for one in sound if (curve := charts.alpha_curve(one))]
        self.gammas = [(one.name, curve) for one in sound if (curve := charts.gamma_curve(one, runs))]
        self.results = results_table(runs)
        self.requests = request_table(runs)
        self.quality = quality_table(runs)
        self.by_group = group_tables(runs)
        self.differences = difference_table(runs)
        self.diagnosed = diagnosis_table(runs)
        measured = "Measured" if untimed(runs) else "Measured and expected"
        self.caption = f"{measured}," if self.replayed is None else replay_line(self.replayed)
        # The resolved settings that all runs share, and those of each run.
        shared = {key: value for key, value in runs[0].config.items() if key != "run"}
        own = [one.config["run"] for one in runs if one.name != BASELINE]
        self.settings, self.run_settings = (json.dumps(one, indent=2, ensure_ascii=False) for one in (shared, own))

    def outputs(self, index: int) -> Iterator[tuple[str, bool, str, str, str, str]]:
        """Yield the outputs for a prompt, the baseline first; runs that did not finish it are left out.

        Args:
            index: Number of the prompt, from 0.

        Yields:
            The name of the run; whether its tokens are those of the baseline; the text, of a greedy run that
            departs only up to the difference; the text from there on; the accepted draft tokens of each step; and
            the element with its trace, if there is one.
        """
        anchors = {name: anchor for name, (anchor, trace) in self.traces.items() if trace["prompt"] == index}
        baseline: Output | None = None
        for run in self.runs:
            if index >= len(self._written[run.name]):
                continue
            output = self._written[run.name][index]
            same, text, rest = baseline is not None and output.same_as(baseline), _text(output), ""
            if run.name == BASELINE:
                baseline = output
            elif not same and baseline is not None and run.config["sampling"]["temperature"] == 0:
                pairs = zip(_text(baseline), text, strict=False)
                shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                text, rest = text[:shared], _cut(text[shared:], _MAX_OUTPUT) or " [ends here]"
            anchor = anchors.get(run.name, "")
            yield run.name, same, _cut(text, _MAX_OUTPUT), rest, _accepted(output), anchor


def _shown(prompts: Sequence[PromptText]) -> dict[int, PromptText]:
    """Return the first prompts of each group by their numbers, from 0."""
    counted: Counter[Group] = Counter()
    found = {}
    for number, prompt in enumerate(prompts):
        counted[prompt.group] += 1
        if counted[prompt.group] <= MAX_PROMPTS:
            found[number] = prompt
    return found


def _accepted(output: Output) -> str:
    """Return how many tokens of each draft were accepted; a draft of an unusual length has it behind a slash."""
    if output.metrics is None or not output.metrics.per_step_drafted:
        return ""
    usual = mode(output.metrics.per_step_drafted)
    pairs = zip(output.metrics.per_step_accepted, output.metrics.per_step_drafted, strict=True)
    steps = " ".join(str(n) if drafted == usual else f"{n}/{drafted}" for n, drafted in pairs)
    return f"Accepted of each draft of {usual}: {_cut(steps, _MAX_OUTPUT)}"


def _text(output: Output) -> str:
    return f"tokens {', '.join(map(str, output.tokens))}" if output.text is None else output.text


def _cut(text: str, max_length: int) -> str:
    left = len(text) - max_length
    return text if left <= 0 else f"{text[:max_length]} … ({left} more characters)"
