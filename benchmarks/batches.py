"""Batches with sequences at different positions: one forward pass for all, or one per sequence.

As soon as sequences accept different numbers of draft tokens, their positions differ. If the model family allows
it, specdec still runs one (ragged) forward pass per step. This benchmark compares it with separate forward passes,
and with the autoregressive baseline, whose sequences stay at the same position. With greedy decoding all three
give the same tokens.

    python benchmarks/batches.py
    python benchmarks/batches.py --target builtin:target --drafter builtin:drafter --prompts heldout
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import floor_seconds, interleaved, ratios, report, spread
from transformers.utils import logging as hf_logging

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.result import BatchResult
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.run.factory import ready_prompts
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    target = load_model(options.target)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    texts = read_prompts(PromptsConfig(builtin=options.prompts, limit=max(options.batch_sizes)), Path())
    prompts = ready_prompts(target, texts)
    report(
        {
            "benchmark": "batches",
            "options": vars(options),
            "floor_milliseconds_per_step": round(1e3 * floor_seconds(target.model), 2),
            "batches": [measure(target, prompts[:batch], options) for batch in options.batch_sizes],
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:t5-target")
    parser.add_argument("--drafter", default="builtin:t5-drafter")
    parser.add_argument("--prompts", default="translation", choices=["heldout", "translation", "summarization"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--gamma", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds")
    parser.add_argument("--inflate-layers", type=int, default=0)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def measure(target: LoadedModel, prompts: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Decode one batch in the three ways, interleaved."""
    functions = {
        "baseline": decoding(target, prompts, options, speculative=False),
        "ragged": decoding(target, prompts, options),
        "row by row": decoding(target.row_by_row(), prompts, options, row_by_row=True),
    }
    seconds, results = interleaved(functions, options.repeats)
    tokens = {name: [row.tokens for row in result.sequences] for name, result in results.items()}
    calls = {name: result.metrics.target_calls for name, result in results.items()}
    return {
        "batch_size": len(prompts),
        "same_tokens": tokens["baseline"] == tokens["ragged"] == tokens["row by row"],
        "target_calls": calls,
        "milliseconds_per_step": {
            name: spread([1e3 * s / calls[name] for s in runs], 2) for name, runs in seconds.items()
        },
        "speedup_over_row_by_row": ratios(seconds["row by row"], seconds["ragged"]),
        "speedup_over_baseline": ratios(seconds["baseline"], seconds["ragged"]),
    }


def decoding(
    target: LoadedModel,
    prompts: list[Any],
    options: argparse.Namespace,
    *,
    speculative: bool = True,
    row_by_row: bool = False,
) -> Callable[[], BatchResult]:
    """Return a function that decodes a batch."""
    sampling = SamplingSettings(temperature=options.temperature)
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True)
    decoder = Decoder(target, sampling=sampling)
    if speculative:
        drafter = TransformerDrafter(TransformerConfig(model=options.drafter), target.info())
        drafter.loaded = drafter.loaded.row_by_row() if row_by_row else drafter.loaded
        decoder = Decoder(target, drafter, gamma=options.gamma, sampling=sampling)
    return lambda: decoder.generate(prompts, settings)


if __name__ == "__main__":
    main()
