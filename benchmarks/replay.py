"""Replaying drafters on the record that ships, against live comparison: seconds, and widths of the intervals.

For each drafter of `examples/replay.yaml`, in one JSON object:

* `replay_seconds`: asking the drafter along every text of both parts and computing gammas 1 to 8, without loading.
* `live_seconds`: decoding the same texts once at each of these gammas, **extrapolated**: a few prompts are decoded
  at one gamma, and their seconds per token multiplied with the tokens of all texts and the number of gammas.
* `live`, `replay`: block efficiency at that gamma and temperature 1, of as many texts of the same prompts, decoded
  with a seed each or recorded; and half the 95% confidence intervals, for other prompts and for other texts of
  these. Live, the second has the noise of the texts and of the draws; replayed, that of the texts alone.
* `record`: the same of all texts of the record.

    python benchmarks/replay.py > docs/data/replay.json
    python benchmarks/replay.py --only prompt-copy --prompts 2
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _common import report
from transformers.utils import logging as hf_logging

from specdec_core import Decoder, LoadedModel, default_registry, load_model
from specdec_core.decoding.arguments import make_drafter
from specdec_core.interface import PluginConfig
from specdec_core.offline.record.format import Record, RecordPart
from specdec_core.offline.record.store import read_record
from specdec_core.offline.record.tasks import part_for
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import TextAcceptance, expected_metrics
from specdec_core.sampling.generators import row_seed
from specdec_core.study import Task, load_study
from specdec_core.theory.intervals import ratio_interval

STUDY = Path(__file__).parent.parent / "examples" / "replay.yaml"
GAMMAS = range(1, 9)


@dataclass(frozen=True)
class Counted:
    """Tokens and steps of texts, by text.

    Attributes:
        prompts: Number of the prompt of each.
        tokens: Its tokens.
        steps: Its forward passes of the target.
        seconds: What decoding all of them took; 0 for a replay.
    """

    prompts: Sequence[int]
    tokens: Sequence[float]
    steps: Sequence[float]
    seconds: float = 0.0

    def plain(self) -> dict[str, float]:
        """Return block efficiency, and half of its intervals."""
        low, high = ratio_interval(self.tokens, self.steps, self.prompts) or (math.nan, math.nan)
        return {
            "block_efficiency": round(sum(self.tokens) / sum(self.steps), 4),
            "other_prompts": round((high - low) / 2, 4),
            "same_prompts": round(1.96 * self._error(), 4),
        }

    def _error(self) -> float:
        """Return the standard error over other texts of the same prompts: of a ratio, stratified by prompt."""
        ratio = sum(self.tokens) / sum(self.steps)
        rests: dict[int, list[float]] = {}
        for prompt, tokens, steps in zip(self.prompts, self.tokens, self.steps, strict=True):
            rests.setdefault(prompt, []).append(tokens - ratio * steps)
        variance = 0.0
        for of_prompt in rests.values():
            n, mean = len(of_prompt), sum(of_prompt) / len(of_prompt)
            variance += n / (n - 1) * sum((rest - mean) ** 2 for rest in of_prompt) if n > 1 else math.nan
        return math.sqrt(variance) / sum(self.steps)


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    record = read_record("builtin:code")
    study = load_study(STUDY)
    target = load_model("builtin:target")
    parts = {task.name: part_for(record, task) for task in study.tasks}
    drafters = {run.labels.drafter: run.drafter for run in study.runs[1:] if run.drafter is not None}
    chosen = {name: one for name, one in drafters.items() if options.only is None or name in options.only}
    rows = [measured(str(name), one, study.tasks, parts, record, target, options) for name, one in chosen.items()]
    report(
        {
            "benchmark": "replay",
            "record": "builtin:code",
            "texts": {name: len(part) for name, part in parts.items()},
            "tokens": {name: sum(len(text.tokens) for text in part) for name, part in parts.items()},
            "gammas": list(GAMMAS),
            "gamma": options.gamma,
            "live_prompts": options.prompts,
            "live_seeds": options.seeds,
            "rows": rows,
            "replay_seconds": round(sum(row["replay_seconds"] for row in rows), 1),
            "live_seconds": round(sum(row["live_seconds"] for row in rows)),
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="DRAFTER", help="drafters, by their name in the result")
    parser.add_argument("--prompts", type=int, default=6, help="prompts that are decoded live")
    parser.add_argument("--seeds", type=int, default=4, help="texts of each of them, up to those of the record")
    parser.add_argument("--gamma", type=int, default=4, help="gamma of what is decoded live")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def measured(
    name: str,
    config: PluginConfig,
    tasks: Sequence[Task],
    parts: dict[str | None, RecordPart],
    record: Record,
    target: LoadedModel,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Return the row of a drafter."""
    drafter = make_drafter(target, config, registry=default_registry())
    replay_seconds = live_seconds = 0.0
    row: dict[str, Any] = {"drafter": name}
    for task in tasks:
        part = parts[task.name]
        acceptance, seconds = _replayed(record, part, drafter, target)
        replay_seconds += seconds
        seeds = 1 if task.sampling.greedy else options.seeds
        live = _decoded(task, part, target, drafter, options.gamma, options.prompts, seeds)
        whole = sum(len(text.tokens) for text in part)
        live_seconds += live.seconds / sum(live.tokens) * whole * len(GAMMAS)
        if not task.sampling.greedy:
            row["live"] = live.plain()
            some = [one for one in acceptance if one.number < options.prompts and one.sample < seeds]
            row["replay"] = _expected(some, options.gamma).plain()
            row["record"] = _expected(acceptance, options.gamma).plain()
    return {**row, "replay_seconds": round(replay_seconds, 2), "live_seconds": round(live_seconds)}


def _replayed(
    record: Record, part: RecordPart, drafter: Any, target: LoadedModel
) -> tuple[Sequence[TextAcceptance], float]:
    """Return the acceptance of a drafter along the texts of a part, and the seconds of that and of all gammas."""
    start = perf_counter()
    acceptance = DrafterReplay(record, part, drafter, max_gamma=max(GAMMAS), target=target).acceptance()
    for gamma in GAMMAS:
        expected_metrics(acceptance, gamma)
    return acceptance, perf_counter() - start


def _expected(acceptance: Sequence[TextAcceptance], gamma: int) -> Counted:
    expected = expected_metrics(acceptance, gamma)
    return Counted(
        [one.number for one in acceptance], expected.by_text["tokens"].tolist(), expected.by_text["steps"].tolist()
    )


def _decoded(
    task: Task, part: RecordPart, target: LoadedModel, drafter: Any, gamma: int, prompts: int, seeds: int
) -> Counted:
    """Decode the first prompts of a part, each with several seeds that are not those of the record."""
    decoder = Decoder(target, drafter, gamma=gamma, sampling=task.sampling, strict=True)
    found: dict[int, Sequence[int]] = {text.number: text.prompt for text in part if text.number < prompts}
    short = task.generation.model_copy(update={"max_new_tokens": 8})
    decoder.generate([list(found[0])], short)  # warms up
    numbers, tokens, steps, seconds = [], [], [], 0.0
    for number, prompt in found.items():
        for seed in range(seeds):
            one = decoder.generate([list(prompt)], task.generation, seeds=[row_seed(1 + seed, number)]).metrics
            numbers.append(number)
            tokens.append(float(one.tokens))
            steps.append(float(one.row_steps))
            seconds += one.seconds
    return Counted(numbers, tokens, steps, seconds)


if __name__ == "__main__":
    main()
