"""Packed weights on a CPU: the time of a target forward pass over one token, and over drafts of several lengths.

The original and the packed target read the same tokens after the same context, interleaved. The floor is the time
to read the weights from memory once. Reading memory on small and on huge pages is timed apart, and so is the
attention of a layer of a Llama with 8 billion parameters, with packed weights and as transformers has it.

    python benchmarks/packed.py
    python benchmarks/packed.py --target builtin:target --inflate-layers 0
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any

import torch
from _common import floor_seconds, forward_pass, interleaved, ratios, report, spread
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdec_core.models import inflate, load_model, pack
from specdec_core.models.device import has_huge_pages, use_huge_pages
from specdec_core.models.fast.attention import attend
from specdec_core.models.fast.packed_linear import PackedLinear, SharedProduct


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    target = load_model(options.target, packed=False)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    packed = pack(target)
    functions = {}
    for drafted in options.drafted:
        functions[f"{drafted} original"] = forward_pass(target, options.context, drafted)
        functions[f"{drafted} packed"] = forward_pass(packed, options.context, drafted)
    seconds, _ = interleaved(functions, options.repeats)
    single_token = median(seconds[f"{options.drafted[0]} original"])
    result = {
        "benchmark": "packed",
        "options": vars(options),
        "parameters": sum(weight.numel() for weight in target.model.parameters()),
        "floor_milliseconds": round(1e3 * floor_seconds(target.model), 2),
        "milliseconds": {name: spread([1e3 * s for s in runs], 2) for name, runs in seconds.items()},
        "over_original_single_token": {name: round(median(s) / single_token, 2) for name, s in seconds.items()},
        "original_over_packed": {
            drafted: ratios(seconds[f"{drafted} original"], seconds[f"{drafted} packed"])
            for drafted in options.drafted
        },
        "attention": [attention(context, options.repeats) for context in (128, 1024, 4096)],
        "reading_small_over_huge_pages": huge_pages(options.repeats) if has_huge_pages() else None,
    }
    report(result)


@torch.inference_mode()
def attention(context: int, repeats: int) -> dict[str, Any]:
    """Time the attention of one and of six tokens: 32 heads of 128, which share the keys of 8."""
    layer = nn.Module()
    layer.product = PackedLinear(nn.Parameter(torch.ones(1, 1)), None, SharedProduct(nn.functional.linear, []))
    layer.num_key_value_groups = 4
    keys, values = torch.randn(2, 1, 8, context, 128)
    row: dict[str, Any] = {"context": context}
    for width in (1, 6):
        arguments = (
            torch.randn(1, 32, width, 128),
            keys,
            values,
            torch.ones(1, 1, width, context, dtype=torch.bool),
        )
        functions = {"ours": attend, "transformers": sdpa_attention_forward}
        seconds, _ = interleaved({name: partial(f, layer, *arguments) for name, f in functions.items()}, repeats)
        row[f"milliseconds_{width}"] = {name: spread([1e3 * s for s in runs], 2) for name, runs in seconds.items()}
        row[f"transformers_over_ours_{width}"] = ratios(seconds["transformers"], seconds["ours"])
    return row


def huge_pages(repeats: int) -> dict[str, float]:
    """Time reading memory on small pages over reading it on huge ones, for several blocks of each."""
    kinds = {"small": lambda _: None, "huge": use_huge_pages}
    functions = {}
    for number in range(12):
        name = ["small", "huge"][number % 2]
        block = torch.empty(2**24)  # too large for memory that was freed before
        kinds[name](block)
        functions[f"{name} {number}"] = block.fill_(1).sum
    seconds, _ = interleaved(functions, repeats)
    sums = {
        name: [sum(turn) for turn in zip(*(runs for key, runs in seconds.items() if name in key), strict=True)]
        for name in kinds
    }
    return ratios(sums["small"], sums["huge"])


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:target")
    parser.add_argument("--inflate-layers", type=int, default=16, help="layers to add to the target; 0 for none")
    parser.add_argument("--inflate-width", type=int, default=8192, help="feed-forward size of those layers")
    parser.add_argument("--context", type=int, default=64, help="number of cached tokens")
    parser.add_argument(
        "--drafted",
        type=int,
        nargs="+",
        default=[0, 1, 2, 3, 4, 5, 7],
        help="draft lengths; the first is the reference",
    )
    parser.add_argument("--repeats", type=int, default=15, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
