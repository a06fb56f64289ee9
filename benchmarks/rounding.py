"""How often the greedy text of a drafter differs from plain decoding, and what helps.

The prompts that the built-in target was not trained on are decoded with it, greedily: without a drafter, with the
built-in draft model, and both again with `exact_shapes`, and with packed weights. Different texts do not mean that
verification is wrong: products of other shapes round sums differently, which decides between tokens that tie.

    python benchmarks/rounding.py
    python benchmarks/rounding.py --dtype float32 --prompts 20
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial

from _common import interleaved, progress, ratios, report

from specdec_core.decoding.decoder import Decoder
from specdec_core.models import load_model, model_folder, with_exact_shapes


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    plain = load_model("builtin:target", dtype=options.dtype, packed=False)
    packed = load_model("builtin:target", dtype=options.dtype, packed=True)
    exact = with_exact_shapes(plain, options.gamma + 1)
    lines = (model_folder("builtin:target").parent / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines[: options.prompts]]
    decoders = {
        name: Decoder(model, drafter, gamma=drafter and options.gamma, temperature=0)
        for name, model, drafter in (
            ("plain", plain, None),
            ("drafted", plain, {"name": "transformer", "model": "builtin:drafter"}),
            ("plain, exact", exact, None),
            ("drafted, exact", exact, {"name": "transformer", "model": "builtin:drafter"}),
            ("plain, packed", packed, None),
            ("drafted, packed", packed, {"name": "transformer", "model": "builtin:drafter"}),
        )
    }
    rows = []
    for size in options.batch_sizes:
        progress(f"batches of {size}")
        seconds, texts = interleaved(
            {name: partial(decode, decoder, prompts, size, options.tokens) for name, decoder in decoders.items()},
            options.repeats,
        )
        rows.append(
            {
                "batch_size": size,
                "prompts": len(prompts),
                "differ": differing(texts["plain"], texts["drafted"]),
                "differ_exact": differing(texts["plain, exact"], texts["drafted, exact"]),
                "differ_packed": differing(texts["plain, packed"], texts["drafted, packed"]),
                "plain_seconds_over_plain": ratios(seconds["plain, exact"], seconds["plain"]),
                "drafted_seconds_over_drafted": ratios(seconds["drafted, exact"], seconds["drafted"]),
            }
        )
    report({"benchmark": "rounding", "options": vars(options), "rows": rows})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", help="number format of the target")
    parser.add_argument("--gamma", type=int, default=4, help="draft tokens of a step")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each prompt")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=1, help="measured rounds")
    return parser.parse_args()


def decode(decoder: Decoder, prompts: Sequence[str], size: int, tokens: int) -> list[tuple[int, ...]]:
    """Return the texts of all prompts, decoded in batches."""
    batches = (prompts[at : at + size] for at in range(0, len(prompts), size))
    return [
        one.tokens for batch in batches for one in decoder.generate(batch, max_new_tokens=tokens, ignore_eos=True)
    ]


def differing(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> int:
    """Return the number of prompts whose texts differ."""
    return sum(one != other for one, other in zip(first, second, strict=True))


if __name__ == "__main__":
    main()
