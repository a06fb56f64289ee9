"""Tokens per second of specdec and of transformers' `generate`, with the same models, prompts, gamma and sampling.

Methods: autoregressive decoding (baseline), a draft model (assisted), and prompt lookup. Targets: the built-in one
and the same inflated, so that drafts are accepted as by a real model. specdec runs with packed weights and
without, compiled and not; transformers as most of its users run it: float32, eager. Its top-k sampling and its
confidence threshold are off, and its schedule of draft lengths is constant. It takes no batches with drafts, so a
batch is compared with its plain batch. Tokens are counted from the output, in the same way for both. Runs are
interleaved. A ratio above 1 means that specdec is faster.

Each row has a floor (the target's bytes over the memory bandwidth, with Theorem 3.8 for the measured alpha and c)
and the gap to it: the milliseconds of a token, part by part.

    python benchmarks/vs_transformers.py --out results.json      # again, to continue an interrupted run
    python benchmarks/vs_transformers.py --sizes 60M --temperatures 0 --batch-sizes 1
    python benchmarks/vs_transformers.py --quick
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _against import (
    ASSISTED,
    BASELINE,
    LOOKUP,
    METHODS,
    Cell,
    SpecdecCell,
    TransformersCell,
    Work,
    batches_of,
    compared,
    drafter_of,
    transformers_methods,
)
from _common import Results, interleaved, memory_bandwidth, progress, spread, weight_bytes
from transformers.utils import logging as hf_logging

from specdec_core.interface import Drafter
from specdec_core.models import LoadedModel, compile_model, inflate, load_model, pack
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig

LONGEST_PROMPT = 48
"""Prompts are truncated to this many tokens: prefill is not part of decoding, and takes long on a CPU."""


@dataclass(frozen=True)
class Size:
    """A target and what is decoded with it: less with a large one, which takes longer.

    Attributes:
        layers: Layers added to the built-in target.
        width: Size of their feed-forward parts.
        prompts: Prompts at batch size 1; at temperatures above 0 at least `SAMPLED`. A larger batch is decoded
            once.
        tokens: New tokens of each.
    """

    layers: int
    width: int
    prompts: int
    tokens: int


SIZES = {
    "10M": Size(0, 0, prompts=2, tokens=64),
    "60M": Size(8, 8192, prompts=2, tokens=40),
    "120M": Size(16, 8192, prompts=1, tokens=40),
    "350M": Size(16, 27_648, prompts=1, tokens=24),
}

SAMPLED = 4
"""Prompts at batch size 1 if tokens are drawn: of fewer texts, the luck of the draws would decide the ratio."""

CONFIGURATIONS = {
    "plain": {"packed": False, "compile": False},
    "packed": {"packed": True, "compile": False},
    "compiled": {"packed": False, "compile": True},
    "packed, compiled": {"packed": True, "compile": True},
}
"""Settings of the target. The drafter has the same, but `packed: auto`, which leaves small models alone."""


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.set_verbosity_error()
    names = ("gamma", "repeats", "tokens", "prompts", "configurations")
    results = Results(options.out, "vs_transformers", {name: getattr(options, name) for name in names})
    bandwidth = memory_bandwidth()
    for size in options.sizes:
        groups = [
            {"size": size, "temperature": temperature, "batch_size": batch_size}
            for temperature, batch_size in product(options.temperatures, options.batch_sizes)
        ]
        models = None  # those of the size before are freed
        for key in groups:
            text = ", ".join(f"{name} {value}" for name, value in key.items())
            if results.row(key) is not None:
                progress(f"{text}: done before")
                continue
            begun = perf_counter()
            models = models or load_models(options, SIZES[size])
            results.add(key, measure(options, models, **key, bandwidth=bandwidth))
            progress(f"{text}: {perf_counter() - begun:.0f} s")
    results.write(summary=summary(results.data["rows"]))
    print(json.dumps(results.data, indent=1))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file, written after each group of rows, and continued")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--configurations", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--repeats", type=int, help="measured rounds; 3 by default")
    parser.add_argument("--tokens", type=int, help="new tokens of each prompt, instead of those of the size")
    parser.add_argument("--prompts", type=int, help="prompts at batch size 1, instead of those of the size")
    parser.add_argument("--quick", action="store_true", help="one round, one prompt: for an indication")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.prompts = options.prompts or (1 if options.quick else None)
    return options


@dataclass(frozen=True)
class Models:
    """The models that are compared.

    Attributes:
        size: Size of the targets.
        plain: The target of transformers.
        assistant: Its draft model.
        prompts: Token ids.
        configured: Our target and its drafters, by the name of the configuration and of the method.
    """

    size: Size
    plain: LoadedModel
    assistant: LoadedModel
    prompts: list[list[int]]
    configured: dict[str, tuple[LoadedModel, dict[str, Drafter | None]]]


def load_models(options: argparse.Namespace, size: Size) -> Models:
    """Load the models of a size."""
    plain = load_model("builtin:target", device="cpu", **CONFIGURATIONS["plain"])
    if size.layers:
        plain = inflate(plain, size.layers, size.width)
    limit = max(*options.batch_sizes, options.prompts or 0, size.prompts, SAMPLED)
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=limit), Path())
    configured = {}
    for name in options.configurations:
        settings = CONFIGURATIONS[name]
        target = pack(plain) if settings["packed"] else plain
        target = compile_model(target) if settings["compile"] else target
        draft_settings = settings | {"packed": "auto" if settings["packed"] else False}
        drafters = {
            BASELINE: None,
            ASSISTED: drafter_of("transformer", target, model="builtin:drafter", **draft_settings),
            LOOKUP: drafter_of("prompt-copy", target, min_match=1, max_match=2),
        }
        configured[name] = target, drafters
    return Models(
        size=size,
        plain=plain,
        assistant=load_model("builtin:drafter", device="cpu", **CONFIGURATIONS["plain"]),
        prompts=[plain.tokenizer(prompt.text)["input_ids"][:LONGEST_PROMPT] for prompt in texts],
        configured=configured,
    )


def measure(
    options: argparse.Namespace, models: Models, size: str, temperature: float, batch_size: int, bandwidth: float
) -> dict[str, Any]:
    """Measure all configurations and methods at one size, temperature and batch size, in turns.

    Raises:
        SystemExit: A model that should be compiled is not.
    """
    prompts = models.size.prompts if temperature == 0 else max(models.size.prompts, SAMPLED)
    count = (options.prompts or prompts) if batch_size == 1 else batch_size
    batches = batches_of(models.prompts[:count], batch_size)
    work = Work(batches, options.tokens or models.size.tokens, options.gamma, temperature)
    torch.manual_seed(0)
    theirs = {
        method: TransformersCell(work, models.plain, **arguments)
        for method, arguments in transformers_methods(work, models.assistant).items()
    }
    ours = {
        (name, method): SpecdecCell(work, target, drafter)
        for name, (target, drafters) in models.configured.items()
        for method, drafter in drafters.items()
    }
    cells: dict[str, Cell] = {f"{name}/{method}": cell for (name, method), cell in ours.items()}
    cells |= {f"transformers/{method}": cell for method, cell in theirs.items()}
    seconds, _ = interleaved(cells, options.repeats)
    floor = weight_bytes(models.plain.model) / bandwidth
    rows = []
    for (name, method), cell in ours.items():
        against = method if method in theirs else BASELINE
        found = compared(
            (cell, seconds[f"{name}/{method}"]),
            (theirs[against], seconds[f"transformers/{against}"]),
            ours[name, BASELINE].total,
            floor,
        )
        rows.append({"configuration": name, "method": method, "against": against, **found})
    for name, (target, _) in models.configured.items():
        if CONFIGURATIONS[name]["compile"] and (target.passes is None or target.passes.failed):
            raise SystemExit(f"{name}: the target was not compiled; a warning above says why.")
    return {
        "size": size,
        "parameters": models.plain.model.num_parameters(),
        "new_tokens": work.tokens,
        "prompts": len(batches) * batch_size,
        "floor_ms_of_a_target_pass": round(1e3 * floor, 4),
        "rows": rows,
    }


def summary(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios over all rows, by method and by configuration, and the rows in which specdec is slower."""
    rows = [group["key"] | row for group in groups for row in group["rows"]]

    def ratios_of(**selected: str) -> dict[str, float]:
        values = [row["ratio"]["median"] for row in rows if selected.items() <= row.items()]
        return spread(values, 3) | {"rows": len(values)}

    names = list(dict.fromkeys(row["configuration"] for row in rows))
    return {
        method: ratios_of(method=method)
        | {"by_configuration": {name: ratios_of(method=method, configuration=name) for name in names}}
        for method in METHODS
    } | {
        "below_1": [
            {name: row[name] for name in (*groups[0]["key"], "configuration", "method", "ratio")}
            for row in rows
            if row["ratio"]["median"] < 1
        ]
    }


if __name__ == "__main__":
    main()
