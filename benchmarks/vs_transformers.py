"""Tokens per second of specdec and of transformers' `generate`, with the same models, prompts, gamma and sampling.

Three methods: autoregressive decoding (baseline), a draft model (assisted), and prompt lookup. In transformers,
top-k sampling and the confidence threshold are off and the schedule of draft lengths is constant. Tokens are
counted from the length of the output, in the same way for both. Runs are interleaved. Prints one JSON object; a
ratio above 1 means that specdec is faster.

    python benchmarks/vs_transformers.py
    python benchmarks/vs_transformers.py --inflate-layers 16 --inflate-width 8192   # a target of some 110M
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import floor_seconds, interleaved, ratios, report, spread
from transformers.utils import logging as hf_logging

from specdec_core import default_registry
from specdec_core.decoding import Decoder
from specdec_core.interface import Drafter, GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.manual_seed(0)
    hf_logging.set_verbosity_error()
    target = load_model(options.target, device=options.device, dtype=options.dtype, packed=False)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    assistant = load_model(options.drafter, device=options.device, dtype=options.dtype, packed=False)
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())
    prompts = [target.tokenizer(prompt.text)["input_ids"] for prompt in texts]
    results = [measure(options, target, assistant, prompts, temperature) for temperature in options.temperatures]
    report(
        {
            "benchmark": "vs_transformers",
            "target_parameters": target.model.num_parameters(),
            "drafter_parameters": assistant.model.num_parameters(),
            "gamma": options.gamma,
            "new_tokens": options.tokens,
            "prompts": len(prompts),
            "floor_seconds_per_baseline_token": round(floor_seconds(target.model), 6)
            if options.device == "cpu"
            else None,
            "results": results,
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:target")
    parser.add_argument("--drafter", default="builtin:drafter")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per prompt")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument(
        "--inflate-layers",
        type=int,
        default=0,
        help="layers to add to the target, which cost time but do not change its output",
    )
    parser.add_argument("--inflate-width", type=int, default=8192, help="feed-forward size of those layers")
    return parser.parse_args()


def measure(
    options: argparse.Namespace,
    target: LoadedModel,
    assistant: LoadedModel,
    prompts: list[list[int]],
    temperature: float,
) -> dict[str, Any]:
    """Time both libraries with the three methods at one temperature."""
    specdec = specdec_cells(options, target, prompts, temperature)
    library = transformers_cells(options, target, assistant, prompts, temperature)
    cells: dict[str, Callable[[], list[int]]] = {}
    for name in specdec:
        cells |= {f"{name}/specdec": specdec[name], f"{name}/transformers": library[name]}
    seconds, lengths = interleaved(cells, options.repeats)
    methods: dict[str, Any] = {}
    for name in specdec:
        ours, theirs = f"{name}/specdec", f"{name}/transformers"
        rates = {cell: [sum(lengths[cell]) / s for s in seconds[cell]] for cell in (ours, theirs)}
        methods[name] = {
            "specdec_tokens_per_second": spread(rates[ours], 1),
            "transformers_tokens_per_second": spread(rates[theirs], 1),
            "ratio": ratios(rates[ours], rates[theirs]),
            "tokens": {"specdec": sum(lengths[ours]), "transformers": sum(lengths[theirs])},
        }
    return {"temperature": temperature, "methods": methods}


def specdec_cells(
    options: argparse.Namespace, target: LoadedModel, prompts: list[list[int]], temperature: float
) -> dict[str, Callable[[], list[int]]]:
    """Return specdec with the three methods, as functions that return the number of new tokens of each prompt."""
    registry, info = default_registry(), target.info()
    settings = GenerationSettings(max_new_tokens=options.tokens, ignore_eos=True)

    def cell(drafter: Drafter | None) -> Callable[[], list[int]]:
        sampling = SamplingSettings(temperature=temperature)
        decoder = Decoder(target, drafter, gamma=options.gamma, sampling=sampling, strict=True)
        return lambda: [len(decoder.generate([ids], settings).sequences[0].tokens) for ids in prompts]

    def drafter(name: str, **values: Any) -> Drafter:
        config = registry.spec("drafter", name).config(**values)
        result: Drafter = registry.create("drafter", name, config, info)
        return result

    return {
        "baseline": cell(None),
        "assisted": cell(drafter("transformer", model=options.drafter, dtype=options.dtype, packed=False)),
        "lookup": cell(drafter("prompt-copy", min_match=1, max_match=2)),
    }


def transformers_cells(
    options: argparse.Namespace,
    target: LoadedModel,
    assistant: LoadedModel,
    prompts: list[list[int]],
    temperature: float,
) -> dict[str, Callable[[], list[int]]]:
    """Return transformers with the three methods, configured to do the same work as specdec."""
    for model in (target.model, assistant.model):
        # As `ignore_eos` in specdec: all methods decode the same number of tokens.
        model.generation_config.eos_token_id = None
    assistant.model.generation_config.num_assistant_tokens = options.gamma
    assistant.model.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.model.generation_config.assistant_confidence_threshold = 0.0
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def cell(**values: Any) -> Callable[[], list[int]]:
        def run() -> list[int]:
            counts = []
            for ids in prompts:
                input_ids = torch.tensor([ids], device=target.device)
                out = target.model.generate(
                    input_ids,
                    attention_mask=torch.ones_like(input_ids),
                    max_new_tokens=options.tokens,
                    pad_token_id=0,
                    **sampling,
                    **values,
                )
                counts.append(out.shape[1] - len(ids))
            return counts

        return run

    return {
        "baseline": cell(),
        "assisted": cell(assistant_model=assistant.model),
        "lookup": cell(prompt_lookup_num_tokens=options.gamma, max_matching_ngram_size=2),
    }


if __name__ == "__main__":
    main()
