"""Measure the shipped pair on held-out modules; print one JSON object.

Perplexities are over the whole held-out text, in windows of the trained length. Acceptance rates are over the
target's own continuations of the built-in prompts, as in speculative decoding:

* temperature 1: the mean of sum_x min(p(x), q(x)) (Corollary 3.6 of arXiv 2211.17192);
* greedy: the share of positions of the target's greedy output where the argmax of both models agrees.

The weights are the shipped ones, rounded to half precision; computations are in float32.

Run from the repository root: `python -m recipes.builtin_pair.measure --out RESULTS.json`
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from recipes.builtin_pair.architectures import TRAINED_LENGTH
from recipes.builtin_pair.corpus import PROVENANCE, WORK
from recipes.builtin_pair.results import Agreement, effort, print_results, sizes


@dataclass(frozen=True)
class Pair:
    """Target p and drafter q."""

    target: LlamaForCausalLM
    drafter: LlamaForCausalLM


def load_model(path: Path) -> LlamaForCausalLM:
    """Load a shipped model in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, stream: np.ndarray) -> float:
    """Return the mean cross-entropy in nats per token. Every token of the stream is predicted once."""
    total, ids = 0.0, torch.from_numpy(stream.astype(np.int64))
    count = len(ids) - 1
    for start in range(0, count, TRAINED_LENGTH):
        row = ids[start : start + TRAINED_LENGTH + 1]
        logits = model(input_ids=row[None, :-1], use_cache=False).logits[0]  # [T, V]
        total += functional.cross_entropy(logits, row[1:], reduction="sum").item()
    return total / count


def text_quality(model: LlamaForCausalLM, stream: np.ndarray, size: int) -> dict[str, float]:
    """Return loss, perplexity per token and bits per byte of the held-out text."""
    loss = held_out_loss(model, stream)
    return {
        "held_out_loss": round(loss, 4),
        "held_out_perplexity": round(math.exp(loss), 3),
        "bits_per_byte": round(loss * (len(stream) - 1) / size / math.log(2), 4),
    }


@torch.inference_mode()
def generate(model: LlamaForCausalLM, prompt: list[int], length: int, sample: bool) -> list[int]:
    """Return the target's continuation of a prompt, up to and including an end-of-text token."""
    inputs = torch.tensor([prompt])
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    rows = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=length,
        pad_token_id=model.config.eos_token_id,
        **(options if sample else {"do_sample": False}),
    )
    return rows[0, len(prompt) :].tolist()


@torch.inference_mode()
def distributions(pair: Pair, prompt: list[int], text: list[int]) -> list[torch.Tensor]:
    """Return p and q, [T, V] each, at the positions of `text`."""
    ids = torch.tensor([prompt + text[:-1]])
    models = (pair.target, pair.drafter)
    return [model(input_ids=ids).logits[0, len(prompt) - 1 :].softmax(-1) for model in models]


def acceptance(pair: Pair, prompts: list[list[int]], length: int, sample: bool) -> dict[str, float | int]:
    """Return the acceptance rate on the target's own text, with its standard error over prompts."""
    found = Agreement()
    for prompt in prompts:
        p, q = distributions(pair, prompt, generate(pair.target, prompt, length, sample))
        found.add(p, q, sample=sample)
    means = np.array(found.sums) / np.array(found.counts)
    return {
        **found.alpha(),
        "lowest_prompt": round(float(means.min()), 4),
        "highest_prompt": round(float(means.max()), 4),
    }


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Return all results as one object."""
    folders = {role: arguments.models / role for role in ("target", "drafter")}
    runs = {"target": "target.pt", "drafter": "drafter*/curve.jsonl"}
    pair = Pair(load_model(folders["target"]), load_model(folders["drafter"]))
    tokenizer = AutoTokenizer.from_pretrained(folders["target"])
    stream = np.load(arguments.work / "held_out.npy")
    size = json.loads(PROVENANCE.read_text(encoding="utf-8"))["held_out"]["bytes"]
    with (arguments.models / "heldout.jsonl").open(encoding="utf-8") as file:
        prompts = [tokenizer.encode(json.loads(line)["prompt"]) for line in file]
    result: dict[str, object] = {}
    for role, model in vars(pair).items():
        result[role] = {
            **sizes(model, folders[role]),
            **text_quality(model, stream, size),
            **effort(*arguments.work.glob(runs[role])),
        }
    torch.manual_seed(arguments.seed)
    options = (prompts, arguments.length)
    result["alpha_temperature_1"] = acceptance(pair, *options, sample=True)
    result["alpha_greedy"] = acceptance(pair, *options, sample=False)
    result["new_tokens_per_prompt"] = arguments.length
    result["prompts"] = len(prompts)
    return result


def main() -> None:
    """Measure the pair; see `print_results`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with the encoded corpus")
    parser.add_argument("--length", type=int, default=128, help="new tokens per prompt")
    print_results(parser, measure)


if __name__ == "__main__":
    main()
