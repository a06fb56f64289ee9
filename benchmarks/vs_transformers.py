"""The same pair, prompts, gamma and settings through this loop and through transformers' `generate`.

Three pairs of cells: plain, assisted by a small model, prompt lookup. The library's top-k is switched off, its
schedule is constant and its confidence stop is off; tokens are counted as the length of what came back, for all
cells. The cells run in turns. Prints one JSON object; a ratio above 1 means that this loop is faster.

    python benchmarks/vs_transformers.py
    python benchmarks/vs_transformers.py --inflate-layers 16 --inflate-width 8192   # a target of some 110M
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import floor_seconds, in_turns, ratios, report, spread
from transformers.utils import logging as library_logging

from specdec_core import default_registry
from specdec_core.border import Drafter
from specdec_core.decoding import Decoder
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.settings import GenerationSettings, SamplingSettings
from specdec_core.study.config import PromptsConfig
from specdec_core.study.prompts import read_prompts


def main() -> None:
    """Run all cells in turns and print what came out."""
    options = parse()
    torch.manual_seed(0)
    library_logging.set_verbosity_error()
    target = load_model(options.target, device=options.device, dtype=options.dtype)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    helper = load_model(options.drafter, device=options.device, dtype=options.dtype)
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())
    prompts = [target.tokenizer(prompt.text)["input_ids"] for prompt in texts]
    results = [measure(options, target, helper, prompts, temperature) for temperature in options.temperatures]
    report(
        {
            "benchmark": "vs_transformers",
            "target_parameters": target.model.num_parameters(),
            "drafter_parameters": helper.model.num_parameters(),
            "gamma": options.gamma,
            "new_tokens": options.tokens,
            "prompts": len(prompts),
            "floor_seconds_a_plain_token": round(floor_seconds(target.model), 6)
            if options.device == "cpu"
            else None,
            "results": results,
        }
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:target")
    parser.add_argument("--drafter", default="builtin:drafter")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens a prompt")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--inflate-layers", type=int, default=0, help="layers to add that change only the cost")
    parser.add_argument("--inflate-width", type=int, default=8192, help="feed-forward size of those layers")
    return parser.parse_args()


def measure(
    options: argparse.Namespace,
    target: LoadedModel,
    helper: LoadedModel,
    prompts: list[list[int]],
    temperature: float,
) -> dict[str, Any]:
    """Time the six cells at one temperature."""
    ours = our_cells(options, target, prompts, temperature)
    theirs = library_cells(options, target, helper, prompts, temperature)
    cells: dict[str, Callable[[], list[int]]] = {}
    for name in ours:
        cells |= {f"{name}/specdec": ours[name], f"{name}/transformers": theirs[name]}
    seconds, counted = in_turns(cells, options.repeats)
    table: dict[str, Any] = {"temperature": temperature, "cells": {}}
    for name in ours:
        mine, other = f"{name}/specdec", f"{name}/transformers"
        fast = {cell: [sum(counted[cell]) / s for s in seconds[cell]] for cell in (mine, other)}
        table["cells"][name] = {
            "specdec_tokens_per_second": spread(fast[mine], 1),
            "transformers_tokens_per_second": spread(fast[other], 1),
            "ratio": ratios(fast[mine], fast[other]),
            "tokens": {"specdec": sum(counted[mine]), "transformers": sum(counted[other])},
        }
    return table


def our_cells(
    options: argparse.Namespace, target: LoadedModel, prompts: list[list[int]], temperature: float
) -> dict[str, Callable[[], list[int]]]:
    """Return this framework's three cells; each returns how many tokens every prompt got."""
    registry, info = default_registry(), target.info()
    settings = GenerationSettings(max_new_tokens=options.tokens, ignore_eos=True)

    def cell(drafter: Drafter | None) -> Callable[[], list[int]]:
        gamma = registry.create("gamma", "fixed", registry.spec("gamma", "fixed").config(gamma=options.gamma))
        sampling = SamplingSettings(temperature=temperature)
        decoder = Decoder(target, drafter, gamma=gamma, sampling=sampling, strict=True)
        return lambda: [len(decoder.generate([ids], settings).rows[0].tokens) for ids in prompts]

    def drafter(name: str, **values: Any) -> Drafter:
        config = registry.spec("drafter", name).config(**values)
        made: Drafter = registry.create("drafter", name, config, info)
        return made

    return {
        "plain": cell(None),
        "assisted": cell(drafter("transformer", model=options.drafter, dtype=options.dtype)),
        "lookup": cell(drafter("prompt-copy", min_match=1, max_match=2)),
    }


def library_cells(
    options: argparse.Namespace,
    target: LoadedModel,
    helper: LoadedModel,
    prompts: list[list[int]],
    temperature: float,
) -> dict[str, Callable[[], list[int]]]:
    """Return transformers' three cells, with everything off that would make it do something else."""
    for model in (target.model, helper.model):
        # As in our cells, no end of sequence: every cell decodes the same number of tokens.
        model.generation_config.eos_token_id = None
    helper.model.generation_config.num_assistant_tokens = options.gamma
    helper.model.generation_config.num_assistant_tokens_schedule = "constant"
    helper.model.generation_config.assistant_confidence_threshold = 0.0
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def cell(**values: Any) -> Callable[[], list[int]]:
        def run() -> list[int]:
            counts = []
            for ids in prompts:
                given = torch.tensor([ids], device=target.device)
                out = target.model.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=options.tokens,
                    pad_token_id=0,
                    **sampling,
                    **values,
                )
                counts.append(out.shape[1] - len(ids))
            return counts

        return run

    return {
        "plain": cell(),
        "assisted": cell(assistant_model=helper.model),
        "lookup": cell(prompt_lookup_num_tokens=options.gamma, max_matching_ngram_size=2),
    }


if __name__ == "__main__":
    main()
