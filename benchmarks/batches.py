"""Batches whose rows stand at different positions: one forward for all of them, beside a forward a row.

Once rows accept different numbers of draft tokens, they part. Target and drafter then take one forward each, where
their family allows it; here the same pair is also run as if it did not. Plain decoding, whose rows stay side by
side, is the third in turn. By argmax all three write the same tokens.

    python benchmarks/batches.py
    python benchmarks/batches.py --target builtin:target --drafter builtin:drafter --prompts heldout
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import floor_seconds, in_turns, ratios, report, spread
from transformers.utils import logging as library_logging

from specdec_core.decoding import BatchResult, Decoder
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.study.config import PromptsConfig
from specdec_core.study.making import ready_prompts
from specdec_core.study.prompts import read_prompts
from specdec_drafters.configs import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from specdec_plugins.configs import FixedGammaConfig
from specdec_plugins.fixed_gamma import FixedGamma


def main() -> None:
    """Measure what the options ask for."""
    options = parse()
    torch.set_num_threads(options.threads)
    library_logging.disable_progress_bar()
    target = load_model(options.target)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    texts = read_prompts(PromptsConfig(builtin=options.prompts, limit=max(options.batch_sizes)), Path())
    prompts = ready_prompts(target, texts)
    report(
        {
            "benchmark": "batches",
            "options": vars(options),
            "floor_milliseconds_a_step": round(1e3 * floor_seconds(target.model), 2),
            "batches": [measure(target, prompts[:batch], options) for batch in options.batch_sizes],
        }
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:t5-target")
    parser.add_argument("--drafter", default="builtin:t5-drafter")
    parser.add_argument("--prompts", default="translation", choices=["heldout", "translation", "summarization"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--gamma", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--inflate-layers", type=int, default=0)
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def measure(target: LoadedModel, prompts: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Decode one batch in the three ways, in turns."""
    cells = {
        "plain": decoding(target, prompts, options, drafted=False),
        "one forward": decoding(target, prompts, options),
        "a forward a row": decoding(target.row_by_row(), prompts, options, apart=True),
    }
    seconds, last = in_turns(cells, options.repeats)
    texts = {name: [row.tokens for row in result.rows] for name, result in last.items()}
    calls = {name: result.metrics.target_calls for name, result in last.items()}
    return {
        "batch_size": len(prompts),
        "same_tokens": texts["plain"] == texts["one forward"] == texts["a forward a row"],
        "target_calls": calls,
        "milliseconds_a_step": {
            name: spread([1e3 * second / calls[name] for second in each], 2) for name, each in seconds.items()
        },
        "speedup_over_a_forward_a_row": ratios(seconds["a forward a row"], seconds["one forward"]),
        "speedup_over_plain": ratios(seconds["plain"], seconds["one forward"]),
    }


def decoding(
    target: LoadedModel,
    prompts: list[Any],
    options: argparse.Namespace,
    *,
    drafted: bool = True,
    apart: bool = False,
) -> Callable[[], BatchResult]:
    """Return a function that decodes a batch."""
    sampling = SamplingSettings(temperature=options.temperature)
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True)
    decoder = Decoder(target, sampling=sampling)
    if drafted:
        drafter = TransformerDrafter(TransformerConfig(model=options.drafter), target.info())
        drafter.loaded = drafter.loaded.row_by_row() if apart else drafter.loaded
        gamma = FixedGamma(FixedGammaConfig(gamma=options.gamma))
        decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling)
    return lambda: decoder.generate(prompts, settings)


if __name__ == "__main__":
    main()
