"""Summaries of runs, as a study would have measured them."""

from dataclasses import fields

from specdec_core.study.report.summary import RunSummary
from specdec_core.study.run.finished_repeats import Output
from specdec_core.theory.intervals import median_interval

QUALITY = {
    "exact": 1.0,
    "first_difference": None,
    "references": 2,
    "bleu": 31.5,
    "chrf": 55.25,
    "rouge1": 60.0,
    "rouge2": 40.0,
    "rougeL": 58.0,
    "differences": {},
    "signatures": {},
    "note": None,
}
BASE = {
    "task": None,
    "drafter": "transformer",
    "gamma": 3,
    "lenience": 1.0,
    "lossless": True,
    "repeats": 3,
    "block_efficiency": 2.0,
    "alpha": 0.7,
    "alpha_by_position": (0.75, 0.6, 0.5),
    "verified_by_position": (300, 180, 24),
    "steps_by_length": (6, 10, 20, 300),
    "seconds": 10.0,
    "cpu_seconds": 9.9,
    "c": 0.1,
    "verify_cost": (1.0, 1.1, 1.2, 1.3),
    "draft_cost": (None, 0.1, 0.2, 0.3),
    "percentiles": {},
    "tokens_per_second": 50.0,
    "tokens_per_second_min": 48.0,
    "tokens_per_second_max": 52.0,
    "speedup": 1.5,
    "speedup_min": 1.4,
    "speedup_max": 1.6,
    "speedup_bound": 2.0,
    "speedup_expected": 1.8,
    "speedup_expected_here": 1.55,
    "gamma_best": 2,
    "speedup_expected_best": 1.6,
    "speedup_by_gamma": (1.0, 1.4, 1.6, 1.55),
    "deviation": 0.0,
    "time_shares": {"target": 0.5, "verifying": 0.1, "drafting": 0.2, "framework": 0.05, "outside": 0.15},
    "diagnosis": "gamma 2 should give 1.60×",
    "quality": QUALITY,
    "seed": 7,
    "device": "cpu (a small one)",
    "failures": (),
    "groups": (),
    "uneven_calls": (),
    "draft_beams": None,
    "drafted": 300,
    "accepted": 150,
    "gamma_mean": 3.0,
    "notes": (),
    "versions": {"specdec": "0.1.0", "torch": "2.13"},
}
UNMEASURED = {
    **dict.fromkeys(name for name in BASE if name.startswith(("speedup", "tokens_per_second"))),
    **dict.fromkeys(("block_efficiency", "alpha", "c", "gamma_best", "time_shares", "diagnosis", "quality")),
    **dict.fromkeys(("alpha_by_position", "verified_by_position", "speedup_by_gamma"), ()),
    "deviation": None,
}


def run(name, temperature=0, **changed):
    config = {"sampling": {"temperature": temperature}, "task": changed.get("task"), "run": {"name": name}}
    given = {**BASE, "config": config, "name": name, **changed}
    if given["repeats"] > 1:
        given = {"speedup_low": given["speedup_min"], "speedup_high": given["speedup_max"], **given}
    return RunSummary(**{**dict.fromkeys(field.name for field in fields(RunSummary)), **given})


def baseline(temperature=0, **changed):
    own = {"drafter": None, "gamma": 0, "speedup": 1.0, "speedup_min": 1.0, "speedup_max": 1.0, "diagnosis": None}
    own |= dict.fromkeys(("alpha_by_position", "verified_by_position", "speedup_by_gamma"), ())
    own |= dict.fromkeys(("alpha", "c", "gamma_best"))
    return run("baseline", temperature, **{**own, **changed})


def output(text, *tokens):
    return Output(tokens or (4, 5), text)


def timed(name, *speedups, **changed):
    """Return a run with the speed-ups of its repeats."""
    low, high = median_interval(speedups) or (None, None)
    middle = sorted(speedups)[len(speedups) // 2]
    return run(
        name,
        repeats=len(speedups),
        **{"speedup": middle, "speedup_low": low, "speedup_high": high, "speedup_bound": 3.0, **changed},
    )
