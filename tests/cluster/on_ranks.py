"""Decodes with a tiny Llama on the processes that torchrun started, and writes what each of them saw.

    torchrun --nproc-per-node 2 tests/cluster/on_ranks.py MODEL OUTPUT [--noise]

With `--noise`, the logits of rank 1 are others than those of rank 0, by far more than rounding.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

import torch
import transformers

from specdec_core import Decoder, load_model
from specdec_core.decoding import make_drafter
from specdec_core.models import PrefixCache

PROMPTS = [[3, 4, 5, 3, 4], [9, 8], [30, 31, 32, 33, 34, 35, 36]]
RUNS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "top_p": 0.9},
    "tree": {"temperature": 1.0, "gamma": {"name": "tree", "widths": [2, 2, 1]}},
    "beams": {"temperature": 0, "beams": 2},
}


def main(folder: str, output: Path, noise: bool) -> None:
    """Write the tokens of every run, and what the target read on each rank."""
    read: list[list[list[int]]] = []
    rank = int(os.environ.get("RANK", "0"))
    shared = "WORLD_SIZE" in os.environ
    plain = transformers.LlamaForCausalLM.forward

    def forward(self, *args, input_ids, **keywords):
        if not shared or hasattr(self.model.embed_tokens.weight, "placements"):
            read.append(input_ids.tolist())
        out = plain(self, *args, input_ids=input_ids, **keywords)
        if noise and rank == 1:
            out.logits = out.logits + torch.randn_like(out.logits)
        return out

    forward.__signature__ = __import__("inspect").signature(plain)
    transformers.LlamaForCausalLM.forward = forward
    atexit.register(lambda: (output / f"read-{rank}.json").write_text(json.dumps(read)))
    target = load_model(folder, tensor_parallel=2 if shared else None)
    assert rank == 0, "rank 1 does not return"
    drafter = make_drafter(target, {"name": "transformer", "model": f"{folder}-drafter"})
    tokens = {}
    for name, options in RUNS.items():
        options = dict(options)
        ways = {key: options.pop(key) for key in ("beams",) if key in options}
        decoder = Decoder(target, drafter, gamma=options.pop("gamma", 3), strict=True, **options)
        result = decoder.generate(PROMPTS, max_new_tokens=24, seed=7, **ways)
        tokens[name] = [one.tokens for one in result.sequences]
        assert result.metrics.accepted
    decoder, cache, texts = Decoder(target, drafter, gamma=3, strict=True, temperature=0), PrefixCache(), PROMPTS
    for rows in ([1, 0, 1], [2, 1]):  # each prompt follows what a row of the call before said
        said = decoder.generate(texts, max_new_tokens=8, ignore_eos=True, cache=cache)
        texts = [[*said[row].prompt, *said[row].tokens, 5, 6] for row in rows]
    tokens["kept"] = [one.tokens for one in decoder.generate(texts, max_new_tokens=8, cache=cache)]
    assert min(cache.reused) > 15
    (output / "tokens.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "--noise" in sys.argv)
