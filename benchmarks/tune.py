"""`specdec tune` against an exhaustive live grid: what each takes, and what the choice is worth.

For each pair of built-in models, one study holds all candidates. It is tuned: recorded, measured, raced, and the
finalists timed live, on half of the prompts. Then `specdec compare` times every candidate live, taking turns. The
JSON object has the time of both, the speed of tuning's choice and of the best candidate in that grid, and whether
the two can be told apart. As the best of many noisy numbers is too good, the choice and the grid's best are also
timed again beside each other (`rematch`).

    python benchmarks/tune.py
    python benchmarks/tune.py --quick
    python benchmarks/tune.py --pairs t5 --prompts 8 --new-tokens 32
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _common import report
from transformers.utils import logging as hf_logging

from specdec_core.interface.trainer import NoProgress
from specdec_core.offline.tune import RaceSettings, TuneOptions, Tuning, costs, tune
from specdec_core.offline.tune.finalists import finals
from specdec_core.study import BASELINE, Comparison, Study, compare, load_study
from specdec_core.study.report.verdict import exceeds_bound, fastest

GAMMAS = [1, 2, 3, 4, 5, 6, 7, 8, "cost-aware"]


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    costs.TIMINGS = options.timings
    pairs = {name: measure(study_of(name, options), options) for name in options.pairs}
    report({"benchmark": "tune", "options": vars(options), "pairs": pairs})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=["code", "t5"], default=["code", "t5"])
    parser.add_argument("--quick", action="store_true", help="about three minutes: fewer prompts")
    parser.add_argument("--prompts", type=int, help="prompts of each study; 10 by default, 3 with --quick")
    parser.add_argument("--new-tokens", type=int, default=48, help="new tokens per prompt, at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3, help="how often each run is timed live")
    parser.add_argument("--finalists", type=int, default=2)
    parser.add_argument("--timings", type=int, default=costs.TIMINGS, help="timings of each draft length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    options.prompts = options.prompts or (3 if options.quick else 10)
    return options


def study_of(pair: str, options: argparse.Namespace) -> Study:
    """Return the study of a pair: every candidate is a run."""
    code = pair == "code"
    small = {"name": "transformer", "model": "builtin:drafter" if code else "builtin:t5-drafter"}
    # Texts of the T5 pair are short, so that there are more of them.
    prompts = {"builtin": "heldout" if code else "translation", "limit": options.prompts * (1 if code else 3)}
    chain = {"name": "chain", "drafters": [{"name": "prompt-copy"}, small]}
    some = [2, 4, 6, 8]
    runs: list[dict[str, Any]] = [
        {"name": "transformer", "drafter": small, "grid": {"gamma": GAMMAS}},
        {"name": "copy", "drafter": "prompt-copy", "grid": {"drafter.min_match": [1, 2, 3], "gamma": some}},
        {"name": "chain", "drafter": chain, "grid": {"drafter.drafters.0.min_match": [2, 3], "gamma": some}},
    ]
    if code:
        heads = {"name": "heads", "model": "builtin:heads"}
        runs.append({"name": "heads", "drafter": heads, "grid": {"gamma": [1, 2, 3, 4]}})
    else:
        bigram = {"name": "ngram", "arpa": "builtin:translation-bigram"}
        runs.append({"name": "bigram", "drafter": bigram, "grid": {"gamma": [1, 2, 3, 4]}})
    return load_study(
        {
            "target": "builtin:target" if code else "builtin:t5-target",
            "prompts": prompts,
            "sampling": {"temperature": options.temperature},
            "generation": {"max_new_tokens": options.new_tokens, "ignore_eos": code, "seed": options.seed},
            "repeats": options.repeats,
            "runs": runs,
        }
    )


def measure(study: Study, options: argparse.Namespace) -> dict[str, Any]:
    """Tune a study, time all of it, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        half = max(1, len(study.tasks[0].prompts) // 2)
        how = TuneOptions(RaceSettings(finalists=options.finalists), live_prompts=half)
        tuned = tune(study, NoProgress(), output=Path(folder) / "best.yaml", options=how)
        tuning_seconds = perf_counter() - start
    start = perf_counter()
    grid = compare(study, progress=False)
    grid_seconds = perf_counter() - start
    choice = tuned.tasks[0].choice.run
    best = fastest(grid.rows)
    names = list(dict.fromkeys([choice, best[0].name]))
    rematch = compare(finals(study, {None: names}, None), progress=False) if len(names) > 1 else grid
    return {
        "candidates": len(study.runs) - 1,
        "tuning_seconds": round(tuning_seconds, 1),
        "parts": {part: round(seconds, 1) for part, seconds in tuned.seconds.items()},
        "grid_seconds": round(grid_seconds, 1),
        "share_of_the_time": round(tuning_seconds / grid_seconds, 3),
        "choice": choice,
        "finalists": outcome(tuned),
        "warning": tuned.tasks[0].warning,
        "grid": speeds(grid, names),
        "grid_best": best[0].name,
        "not_told_from_the_best": [one.name for one in best],
        "choice_within_noise_of_the_best": choice in {one.name for one in best},
        "rank_of_the_choice": rank(grid, choice),
        "rematch": speeds(rematch, names),
    }


def outcome(tuned: Tuning) -> dict[str, float | None]:
    """Return what was expected of the finalists, in tokens per second."""
    race = tuned.tasks[0].race
    return {one.name: one.speed and round(one.speed.value, 1) for one in race.tried if one.name in race.finalists}


def rank(grid: Comparison, name: str) -> int:
    """Return the rank of a run among those of the grid whose timings can be trusted, from 1."""
    others = [row for row in grid.rows if row.name == name or not (row.name == BASELINE or exceeds_bound(row))]
    ordered = sorted(others, key=lambda row: -(row.speed.speedup or 0))
    return 1 + [row.name for row in ordered].index(name)


def speeds(found: Comparison, names: Sequence[str]) -> dict[str, Any]:
    """Return the measured speed-ups of some runs, with their intervals."""
    return {
        row.name: {
            "tokens_per_second": round(row.speed.tokens_per_second or 0, 1),
            "speedup": [
                None if end is None else round(end, 3)
                for end in (row.speed.speedup, row.speed.speedup_low, row.speed.speedup_high)
            ],
        }
        for row in found.rows
        if row.name in (BASELINE, *names)
    }


if __name__ == "__main__":
    main()
