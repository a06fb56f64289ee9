"""The tables of a study's results, built once for the terminal and the HTML report."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from specdec_core.study.config.study import BASELINE
from specdec_core.study.report.certainty import (
    certainty_notes,
    few_steps,
    few_verified,
    marked,
    replay_of,
    untimed,
)
from specdec_core.study.report.formats import UNKNOWN, number, rate, share, with_spread
from specdec_core.study.report.layout import Column, ReportTable, Row
from specdec_core.study.report.paired import adjusted
from specdec_core.study.report.summary import RunSummary
from specdec_core.study.report.verdict import exceeds_bound

SCORES = {"bleu": "BLEU", "chrf": "chrF", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""Names of the scores, by their keys in results."""
TESTED = "chrF"
"""The score whose difference from the baseline the table shows: of the tested ones, it suits most languages and
lengths. Results have the others."""


def by_task(summaries: Sequence[RunSummary]) -> list[list[RunSummary]]:
    """Return the summaries grouped by task, the baseline first in each group."""
    return [list(group) for _, group in groupby(summaries, key=lambda summary: summary.task)]


def results_table(summaries: Sequence[RunSummary], *, wide: bool = True) -> ReportTable:
    """Return the results of a task, the baseline in the first row.

    Args:
        summaries: The runs of the task.
        wide: Whether it has more than the figures that every reader looks for first.
    """
    replayed = replay_of(summaries) is not None
    lossy = any(summary.lenience != 1 or not summary.lossless for summary in summaries)
    timed = not untimed(summaries) and any(summary.speedup is not None for summary in summaries)
    left_out = {
        *(() if any(one.lenience != 1 for one in summaries) else ("lenience",)),
        *(() if any(one.rule is not None for one in summaries) else ("rule",)),
        *(() if lossy else ("deviation",)),
        *(() if any(one.beams for one in summaries) else ("beams", "draft_beams", "passes_saved")),
        *(() if any(one.forecast for one in summaries) else ("forecast",)),
        *(() if timed or not (replayed or untimed(summaries)) else _OF_TIMES),
        *(("speedup_expected_here",) if replayed else ()),
    }
    columns = {name: column for name, column in _RESULTS.items() if name not in left_out}
    shown = [name for name in columns if wide or name in _FIRST]
    notes = certainty_notes(summaries)
    if len(shown) < len(columns):
        notes.append(
            f"`--wide` also shows: {', '.join(columns[name].name for name in columns if name not in shown)}."
        )
    columns |= _OF_REPLAYS if replayed else {}
    return ReportTable(
        tuple(columns[name] for name in shown),
        tuple(_results_row(one, shown) for one in summaries),
        tuple(notes),
        summaries[0].task,
        unknown="not known" if replayed else "not measured",
    )


_HERE = "Expected here, best γ: with the measured time of verifying, drafting and the framework."
_RESULTS = {
    "run": Column("run", numeric=False),
    "drafter": Column("drafter", numeric=False, spare=11),
    "beams": Column("w"),
    "draft_beams": Column("u", spare=6, note="w: beams; u: nodes in each level of a draft, of which there are γ."),
    "gamma": Column("γ", spare=5),
    "lenience": Column("l", spare=4, note="l: lenience."),
    "rule": Column("rule", numeric=False, spare=4),
    "deviation": Column(
        "deviation", spare=8, note="Deviation: total variation from the target's distribution, per sequence."
    ),
    "alpha": Column("acceptance\nrate", spare=2),
    "c": Column("c", spare=9),
    "block_efficiency": Column("block\nefficiency", spare=3),
    "forecast": Column(
        "expected\nefficiency",
        spare=2,
        note="Expected efficiency: block efficiency of the same drafter and γ in a replay, or in a run here.",
    ),
    "passes_saved": Column(
        "passes\nsaved",
        note="Passes saved: target calls that the run did without, of those of beam search without a drafter.",
    ),
    "tokens_per_second": Column("tokens/s", spare=1),
    "speedup": Column("speed-up"),
    "speedup_expected_here": Column("expected\nhere", spare=6, note=_HERE),
    "speedup_expected": Column(
        "Theorem\n3.8",
        spare=10,
        note="Theorem 3.8: from a run's acceptance rate and c, if verifying took no longer than a baseline step.",
    ),
    "gamma_best": Column("best\nγ", spare=7, note=_HERE),
}
"""The columns of the results, by the field of a summary that they show."""
_FIRST = ("run", "alpha", "block_efficiency", "forecast", "passes_saved", "tokens_per_second", "speedup")
"""What a terminal shows unless asked for more."""
_OF_TIMES = ("c", "tokens_per_second", "speedup", "speedup_expected_here", "speedup_expected", "gamma_best")
"""Columns that need the seconds of a machine."""
_OF_REPLAYS = {
    "tokens_per_second": Column("expected\ntokens/s", spare=1),
    "speedup": Column("expected\nspeed-up"),
    "gamma_best": Column("best\nγ", spare=7),
}
"""Columns whose numbers are expected instead of measured."""


def quality_table(summaries: Sequence[RunSummary]) -> ReportTable | None:
    """Return the quality of the outputs of a task's runs; None without references to compare them with."""
    scored = [(one, one.quality) for one in summaries if one.quality is not None and one.quality["references"]]
    if not scored:
        return None
    tested = any(quality["differences"] for _, quality in scored)
    found = [quality["differences"].get(TESTED.lower()) for _, quality in scored]
    p_values = adjusted([None if one is None else one["p"] for one in found])
    rows = []
    for (summary, quality), difference, p in zip(scored, found, p_values, strict=True):
        cells = [summary.name, *(number(quality[name], 1) for name in SCORES), share(quality["exact"])]
        if tested:
            # The baseline is what the others are compared with.
            cells += ["", ""] if summary.name == BASELINE else [_difference(difference), number(p, 2)]
        rows.append(Row(tuple(cells), "dim" if summary.name == BASELINE else ""))
    return ReportTable(
        columns=(
            Column("run", numeric=False),
            *(Column(name, spare=_LEAST.get(name, 2)) for name in SCORES.values()),
            Column("same as\nbaseline", spare=1),
            *(_TEST if tested else ()),
        ),
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(quality["note"] for _, quality in scored if quality["note"])),
    )


def request_table(summaries: Sequence[RunSummary]) -> ReportTable | None:
    """Return percentiles over the requests of a task's runs; None if nothing was measured for each request."""
    found = [(one, dict(one.percentiles)) for one in summaries if one.percentiles]
    if not found:
        return None
    for one, figures in found:
        if one.thinking is not None:
            figures["thinking"] = {name: part["mean_acceptance_length"] for name, part in one.thinking.items()}
    shown = [one for one in _REQUESTS if any(one[0] in percentiles for _, percentiles in found)]
    rows = []
    for summary, percentiles in found:
        cells = [number(percentiles.get(name, {}).get(key), 2) for name, key, _ in shown]
        if summary.drafter is None:
            cells = ["" if cell == UNKNOWN else cell for cell in cells]
        rows.append(Row((summary.name, *cells), "dim" if summary.name == BASELINE else ""))
    columns = (Column(f"{heading}\n{key}") for _, key, heading in shown)
    return ReportTable((Column("run", numeric=False), *columns), tuple(rows))


_REQUESTS = (
    *(("mean_acceptance_length", key, "mean acceptance length") for key in ("p10", "p50", "p90")),
    *(("draft_acceptance_rate", key, "draft acceptance rate") for key in ("p10", "p50", "p90")),
    *(("thinking", key, "mean acceptance length, thinking") for key in ("inside", "outside")),
    *(("seconds", key, "seconds") for key in ("p50", "p90", "p95", "p99")),
)
"""Figures of requests, their percentiles, and the headings."""
_LEAST = {"ROUGE-1": 4, "ROUGE-2": 5, "ROUGE-L": 3, TESTED: 0}
_TEST = (
    Column(f"{TESTED} against\nbaseline"),
    Column(
        "p",
        spare=1,
        note="p: probability of a difference this large by chance, adjusted for the number of runs.",
    ),
)


def _results_row(one: RunSummary, shown: Sequence[str]) -> Row:
    """Return the cells of some columns of `_RESULTS`."""
    interval = (None, None) if one.name == BASELINE else (one.speedup_low, one.speedup_high)
    on = one.replayed
    texts = (None, None) if on is None or one.name == BASELINE else (on.low, on.high)
    few = few_steps(one)
    cells = [
        f"{one.name}{_mark(one)}",
        one.drafter or "",
        str(one.beams or ""),
        str(one.draft_beams or ""),
        str(one.gamma) if one.drafter else "",
        str(one.lenience),
        (one.rule or "token") if one.drafter else "",
        number(one.deviation, 2),
        marked(rate(one.alpha), few_verified(one)),
        marked(number(one.c, 3), few),
        with_spread(one.block_efficiency, *texts, 2),
        _forecast(one),
        UNKNOWN if one.passes_saved is None else share(one.passes_saved),
        with_spread(
            one.tokens_per_second, one.tokens_per_second_min, one.tokens_per_second_max, 1, repeats=one.repeats
        ),
        with_spread(one.speedup, *interval, 2, "×", repeats=2 if one.replayed else one.repeats),
        marked(number(one.speedup_expected_here, 2, "×"), few),
        marked(number(one.speedup_expected, 2, "×"), few),
        UNKNOWN if one.gamma_best is None else str(one.gamma_best),
    ]
    if one.drafter is None:
        # The baseline drafts nothing: what describes drafts is not unknown, there is none.
        cells = ["" if cell == UNKNOWN and one.repeats else cell for cell in cells]
    of_columns = dict(zip(_RESULTS, cells, strict=True))
    return Row(
        tuple(of_columns[name] for name in shown), "dim" if one.name == BASELINE else "red" if _mark(one) else ""
    )


def _mark(summary: RunSummary) -> str:
    """Return why a run is not compared, for its row; nothing if it is."""
    if summary.status != "ok":
        return " (failed)"
    if exceeds_bound(summary):
        return " (in doubt)"
    return " (keeps state)" if summary.uneven_calls else ""


def _forecast(summary: RunSummary) -> str:
    """Return the block efficiency to expect of an engine; nothing for runs that decode here."""
    if "engine" not in summary.config["run"]:
        return ""
    one = summary.forecast
    return UNKNOWN if one is None else with_spread(one.block_efficiency, one.low, one.high, 2)


def _difference(found: Mapping[str, float | None] | None) -> str:
    """Return the difference of a score with its confidence interval."""
    if found is None:
        return UNKNOWN
    interval = "" if found["low"] is None else f" ({found['low']:+.1f} to {found['high']:+.1f})"
    return f"{found['value']:+.1f}{interval}"
