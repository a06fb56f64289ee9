"""Drafters made of the target, on a CPU: the time of a forward pass over one token beside that of the target.

A Llama with random, packed weights in float32 and its copies are timed in turns: in bfloat16; in 8 and 4 bits as
the drafter `quantized` has them, and in 8 bits as torchao has them if it is installed; and its first layers, as
`early-exit` has them.

    python benchmarks/self_speculation.py
    python benchmarks/self_speculation.py --hidden 256 --layers 12 --vocab 4096
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median

import torch
from _common import floor_seconds, forward_pass, interleaved, report, spread
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_core.models import LoadedModel, pack, quantize, wrap_model
from specdec_core.models.fast.packing import pack_as_set
from specdec_drafters.early_exit.drafter import cost_share, exit_after


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    model = new_model(options)
    models = {"target": pack(wrap_model(model)), **dict(copies(model, options.exits))}
    target = models["target"]
    steps = {name: forward_pass(each, options.context) for name, each in models.items()}
    seconds, _ = interleaved(steps, options.repeats)
    report(
        {
            "benchmark": "self_speculation",
            "options": vars(options),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "floor_milliseconds": round(1e3 * floor_seconds(model), 2),
            "milliseconds": {name: spread([1e3 * s for s in runs], 2) for name, runs in seconds.items()},
            "c": {name: round(median(runs) / median(seconds["target"]), 3) for name, runs in seconds.items()},
            "share_of_the_weights": {
                name: round(cost_share(each, target), 3) for name, each in models.items() if "exit" in name
            },
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768, help="hidden size")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--exits", type=int, nargs="*", default=[1, 2, 4], help="layers before an exit")
    parser.add_argument("--context", type=int, default=64, help="number of cached tokens")
    parser.add_argument("--repeats", type=int, default=15, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def new_model(options: argparse.Namespace) -> LlamaForCausalLM:
    """Return a Llama with random weights."""
    config = LlamaConfig(
        vocab_size=options.vocab,
        hidden_size=options.hidden,
        intermediate_size=-(-8 * options.hidden // (3 * 64)) * 64,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.hidden // 64),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def copies(model: LlamaForCausalLM, exits: list[int]) -> Iterator[tuple[str, LoadedModel]]:
    """Yield copies of a model, by name."""
    target = pack(wrap_model(model))
    # Plain where this CPU has no product of packed bfloat16 weights.
    yield "bfloat16", pack_as_set(wrap_model(copy.deepcopy(model).to(torch.bfloat16)), "auto")
    for bits in (8, 4):
        yield f"quantized, {bits} bits", quantize(target, bits)
    if find_spec("torchao") is not None:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

        for name, config in (
            ("torchao, 8-bit weights", Int8WeightOnlyConfig()),
            ("torchao, 8-bit weights and activations", Int8DynamicActivationInt8WeightConfig()),
        ):
            other = copy.deepcopy(model)
            quantize_(other, config)
            yield name, wrap_model(other)
    for layers in exits:
        yield f"exit after {layers}", exit_after(target, layers)


if __name__ == "__main__":
    main()
