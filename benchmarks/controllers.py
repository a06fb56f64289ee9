"""Gamma controllers compared with fixed gammas, for every drafter.

The target is inflated to about 100 million parameters, so that forward passes cost what they cost in a larger
model. For each drafter and temperature, the autoregressive baseline, the fixed gammas and the controllers decode
the same prompts from the same seed, interleaved. Each round starts with the baseline and runs the others in a
different order. Each drafter first decodes one prompt as a warm-up. Controllers start the first round with no
knowledge and keep what they learn for later rounds; the first round is also reported separately.

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
from transformers.utils import logging as hf_logging

from drafters import DRAFTERS
from specdec_core import default_registry
from specdec_core.decoding.arguments import make_drafter
from specdec_core.decoding.counts import Metrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.study import run_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.config.study import BASELINE


def main() -> None:
    """Run the benchmark and print the result; after Ctrl-C, print the results so far."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    target = inflate(load_model("builtin:target"), options.inflate_layers, options.inflate_width)
    results: list[dict[str, Any]] = []
    complete = False
    try:
        for result in measure(target, options):
            results.append(result)
            print(json.dumps(result), file=sys.stderr)
        complete = True
    except KeyboardInterrupt:
        print("stopped; the results so far follow", file=sys.stderr)
    given = {name: value for name, value in vars(options).items() if name != "only"}
    report({"benchmark": "controllers", "complete": complete, "options": given, "results": results})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="DRAFTER", choices=list(DRAFTERS), help="drafters to measure; all by default"
    )
    parser.add_argument("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8], help="fixed gammas")
    parser.add_argument(
        "--controllers",
        nargs="+",
        default=["cost-aware"],
        help="controller names, or JSON objects with a name and settings",
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    parser.add_argument("--prompts", type=int, default=8, help="number of built-in prompts, decoded one by one")
    parser.add_argument("--new-tokens", type=int, default=64, help="new tokens per prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inflate-layers", type=int, default=16)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


@dataclass
class Method:
    """A decoder and its measurements.

    Attributes:
        decoder: The decoder.
        rounds: Metrics of each round.
    """

    decoder: Decoder
    rounds: list[Metrics] = field(default_factory=list)

    def run(self, prompts: Sequence[str], settings: GenerationSettings) -> None:
        """Decode the prompts one by one."""
        self.rounds.append(sum((self.decoder.generate([one], settings).metrics for one in prompts), Metrics()))

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each round."""
        return [metrics.tokens_per_second for metrics in self.rounds]


def measure(target: LoadedModel, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the results of each drafter at each temperature."""
    names = options.only or list(DRAFTERS)
    prompts = [p.text for p in read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())]
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True, seed=options.seed)
    for temperature in options.temperatures:
        for name in names:
            start = perf_counter()
            methods = make_methods(target, name, temperature, options)
            for method in (methods[BASELINE], methods[f"gamma {options.gammas[-1]}"]):
                method.decoder.generate(prompts[:1], settings)  # warm-up
            for turn in range(options.repeats):
                for label in shuffled(list(methods), turn):
                    methods[label].run(prompts, settings)
                print(f"{name}, temperature {temperature:g}: round {turn + 1}", file=sys.stderr)
            yield {
                "drafter": name,
                "temperature": temperature,
                **summary(methods, options),
                "minutes": round((perf_counter() - start) / 60, 2),
            }


def shuffled(names: list[str], turn: int) -> list[str]:
    """Return the baseline first, then the others in an order that differs from round to round."""
    others = [name for name in names if name != BASELINE]
    first = turn * max(1, len(others) // 3) % len(others)
    return [BASELINE, *others[first:], *others[:first]]


def make_methods(
    target: LoadedModel, name: str, temperature: float, options: argparse.Namespace
) -> dict[str, Method]:
    """Return the baseline, the fixed gammas and the controllers. All share one drafter."""
    registry = default_registry()
    model, sampling = run_model(registry), SamplingSettings(temperature=temperature)
    settings = model.model_validate({"drafter": DRAFTERS[name], "gamma": 1}).drafter
    drafter = make_drafter(target, settings, registry=registry)
    gammas: dict[str, Any] = {f"gamma {gamma}": gamma for gamma in options.gammas}
    for text in options.controllers:
        gammas[text] = json.loads(text) if text.startswith("{") else text
    methods = {BASELINE: Method(Decoder(target, sampling=sampling))}
    for label, gamma in gammas.items():
        config = model.model_validate({"drafter": DRAFTERS[name], "gamma": gamma}).gamma
        controller = registry.create("gamma", config.name, config)
        methods[label] = Method(Decoder(target, drafter, gamma=controller, sampling=sampling, strict=True))
    return methods


def summary(methods: Mapping[str, Method], options: argparse.Namespace) -> dict[str, Any]:
    """Return the tokens per second of each method, and how the controllers compare, round by round."""
    fixed = {0: methods[BASELINE], **{gamma: methods[f"gamma {gamma}"] for gamma in options.gammas}}
    best = max(fixed, key=lambda gamma: median(fixed[gamma].rates))
    seconds = seconds_by_length(methods.values())
    return {
        "tokens_per_second": {name: spread(method.rates, 2) for name, method in methods.items()},
        "best_fixed_gamma": best,
        "acceptance_rate": fixed[max(fixed)].rounds[-1].alpha,
        "milliseconds_per_step": {k: round(1e3 * s, 2) for k, s in sorted(seconds.items())},
        "controllers": {
            name: {
                "over_best_fixed": ratios(methods[name].rates, fixed[best].rates),
                "over_baseline": ratios(methods[name].rates, fixed[0].rates),
                "first_over_best_fixed": round(methods[name].rates[0] / fixed[best].rates[0], 4),
                "first_over_baseline": round(methods[name].rates[0] / fixed[0].rates[0], 4),
                "drafted_per_step": [round(m.drafted / m.target_calls, 2) for m in methods[name].rounds],
            }
            for name in options.controllers
        },
    }


def seconds_by_length(methods: Collection[Method]) -> dict[int, float]:
    """Return the mean seconds of a step by draft length, over all methods and rounds."""
    total = sum((metrics for method in methods for metrics in method.rounds), Metrics())
    return {k: t.seconds / t.steps for k, t in enumerate(total.times) if t.steps}


if __name__ == "__main__":
    main()
