"""What controllers of gamma are worth: the cost-aware one beside every fixed gamma, for every drafter.

The target is inflated to some 100 million parameters, so that its times are those of a larger one. For each
drafter and temperature, plain decoding, the fixed gammas and the controllers decode the same prompts from the
same seed, in turns; every round begins with plain decoding, and goes on in another order than the round before.
Before the rounds, each drafter decodes a prompt that does not count. A controller begins its first round
knowing nothing, and keeps what it learnt for the later ones; the first is also shown by itself.

`oracle` is what nobody can do: the tokens a second of the run with the largest gamma, had it known what would be
accepted (`specdec_core.theory.oracle_seconds`).

    python benchmarks/controllers.py
    python benchmarks/controllers.py --only random transformer --temperatures 0 --gammas 2 4 8
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _common import ratios, report, spread
from transformers.utils import logging as library_logging

from drafters import BESIDE_TARGETS
from specdec_core import default_registry
from specdec_core.decoding import Decoder, Metrics, TraceObserver
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.shipped import PROMPTS
from specdec_core.study import run_model
from specdec_core.study.config import PromptsConfig
from specdec_core.study.making import make_drafter
from specdec_core.study.prompts import read_prompts
from specdec_core.study.study import PLAIN
from specdec_core.theory import oracle_seconds, step_seconds


def main() -> None:
    """Measure what the options ask for; print what there is, also when stopped."""
    options = parse()
    torch.set_num_threads(options.threads)
    library_logging.disable_progress_bar()
    target = inflate(load_model("builtin:target"), options.inflate_layers, options.inflate_width)
    cells: list[dict[str, Any]] = []
    complete = False
    try:
        for cell in measured(target, options):
            cells.append(cell)
            print(json.dumps(cell), file=sys.stderr)
        complete = True
    except KeyboardInterrupt:
        print("stopped; what was measured follows", file=sys.stderr)
    asked = {name: value for name, value in vars(options).items() if name != "only"}
    report({"benchmark": "controllers", "complete": complete, "options": asked, "cells": cells})


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="DRAFTER", choices=list(BESIDE_TARGETS), help="some drafters")
    parser.add_argument("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], help="fixed gammas")
    parser.add_argument("--controllers", nargs="+", default=["cost-aware"], help="names, or JSON with settings")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--prompts", type=int, default=8, help="built-in prompts, one after another")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens decoded after each prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inflate-layers", type=int, default=16)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


@dataclass
class Way:
    """One way to decode, and what came of it: an entry a round.

    Attributes:
        decoder: The way.
        rounds: The counts and times of each round.
        traces: What each step of the last round accepted, the prompt's step left out; a list a prompt.
    """

    decoder: Decoder
    rounds: list[Metrics] = field(default_factory=list)
    traces: list[list[int]] = field(default_factory=list)

    def run(self, prompts: Sequence[str], settings: GenerationSettings) -> None:
        """Decode the prompts, one after another."""
        total, self.traces = Metrics(), []
        for prompt in prompts:
            trace = TraceObserver()
            total += self.decoder.generate([prompt], settings, observers=[trace]).metrics
            self.traces.append([step.accepted[0] for step in trace.reports[1:]])
        self.rounds.append(total)

    @property
    def rates(self) -> list[float]:
        """Tokens a second in each round."""
        return [metrics.tokens_per_second for metrics in self.rounds]


def measured(target: LoadedModel, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured of each drafter at each temperature."""
    names = options.only or list(BESIDE_TARGETS)
    prompts = [p.text for p in read_prompts(PromptsConfig(file=PROMPTS, limit=options.prompts), Path())]
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True, seed=options.seed)
    for temperature in options.temperatures:
        for name in names:
            begun = perf_counter()
            ways = ways_of(target, name, temperature, options)
            for way in (ways[PLAIN], ways[f"gamma {options.gammas[-1]}"]):
                way.decoder.generate(prompts[:1], settings)  # not counted
            for turn in range(options.repeats):
                for label in in_turn(list(ways), turn):
                    ways[label].run(prompts, settings)
                print(f"{name}, temperature {temperature:g}: round {turn + 1}", file=sys.stderr)
            yield {
                "drafter": name,
                "temperature": temperature,
                **summary(ways, options),
                "minutes": round((perf_counter() - begun) / 60, 2),
            }


def in_turn(names: list[str], turn: int) -> list[str]:
    """Return plain decoding, and the others in an order that differs from round to round."""
    others = [name for name in names if name != PLAIN]
    first = turn * max(1, len(others) // 3) % len(others)
    return [PLAIN, *others[first:], *others[:first]]


def ways_of(target: LoadedModel, name: str, temperature: float, options: argparse.Namespace) -> dict[str, Way]:
    """Return plain decoding, the fixed gammas and the controllers; all with one drafter, loaded once."""
    registry = default_registry()
    model, sampling = run_model(registry), SamplingSettings(temperature=temperature)
    settings = model.model_validate({"drafter": BESIDE_TARGETS[name], "gamma": 1}).drafter
    drafter = make_drafter(target, settings, registry=registry)
    chosen: dict[str, Any] = {f"gamma {gamma}": gamma for gamma in options.gammas}
    for text in options.controllers:
        chosen[text] = json.loads(text) if text.startswith("{") else text
    ways = {PLAIN: Way(Decoder(target, sampling=sampling))}
    for label, gamma in chosen.items():
        config = model.model_validate({"drafter": BESIDE_TARGETS[name], "gamma": gamma}).gamma
        controller = registry.create("gamma", config.name, config)
        ways[label] = Way(Decoder(target, drafter, gamma=controller, sampling=sampling, strict=True))
    return ways


def summary(ways: Mapping[str, Way], options: argparse.Namespace) -> dict[str, Any]:
    """Return tokens a second of every way, and how the controllers compare, round by round."""
    fixed = {0: ways[PLAIN], **{gamma: ways[f"gamma {gamma}"] for gamma in options.gammas}}
    best = max(fixed, key=lambda gamma: median(fixed[gamma].rates))
    oracle = oracle_rate(fixed[max(fixed)], ways.values(), max(fixed))
    return {
        "tokens_per_second": {name: spread(way.rates, 2) for name, way in ways.items()},
        "best_fixed_gamma": best,
        "alpha": fixed[max(fixed)].rounds[-1].alpha,
        "milliseconds_a_step": {k: round(1e3 * s, 2) for k, s in sorted(seconds_by_length(ways.values()).items())},
        "oracle_tokens_per_second": round(oracle, 2),
        "controllers": {
            name: {
                "over_best_fixed": ratios(ways[name].rates, fixed[best].rates),
                "over_plain": ratios(ways[name].rates, fixed[0].rates),
                "over_oracle": round(median(ways[name].rates) / oracle, 4),
                "first_over_best_fixed": round(ways[name].rates[0] / fixed[best].rates[0], 4),
                "first_over_plain": round(ways[name].rates[0] / fixed[0].rates[0], 4),
                "drafted_a_step": [round(m.drafted / m.target_calls, 2) for m in ways[name].rounds],
            }
            for name in options.controllers
        },
    }


def seconds_by_length(ways: Collection[Way]) -> dict[int, float]:
    """Return the mean seconds of a step by the length of its draft, over all ways and rounds."""
    total = sum((metrics for way in ways for metrics in way.rounds), Metrics())
    return {k: t.seconds / t.steps for k, t in enumerate(total.times) if t.steps}


def oracle_rate(way: Way, ways: Collection[Way], gamma: int) -> float:
    """Return the tokens a second of a run with a fixed gamma, had an oracle chosen gamma in each step instead.

    What is not a step counts as it was: the prompts' steps, opening and closing.
    """
    seconds = step_seconds(0.0, gamma, seconds_by_length(ways))
    last = way.rounds[-1]
    rest = last.seconds - sum((times.seconds for times in last.times), 0.0)
    return last.tokens / (rest + sum(oracle_seconds(trace, seconds) for trace in way.traces))


if __name__ == "__main__":
    main()
