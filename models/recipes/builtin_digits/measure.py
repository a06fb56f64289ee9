"""Measure the digits' models on the held-out pictures and on the target's own; print one JSON object.

Bits per pixel are of the held-out pictures. Acceptance rates are over pictures that the target drew:

* temperature 1: the mean of sum_x min(p(x), q(x)) (Corollary 3.6 of arXiv 2211.17192);
* greedy: the share of pixels of the target's greedy pictures where the argmax of both models agrees.

The weights are the shipped ones; computations are in float32.

Run from the repository root:
`python -m recipes.builtin_digits.measure --out models/recipes/builtin_digits/RESULTS.json`
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from recipes.builtin_digits.data import CLASSES, LEVELS, PIXELS, VOCABULARY_SIZE, WORK, read_ids
from recipes.builtin_pair.architectures import count_parameters
from recipes.builtin_pair.results import Agreement, effort, print_results
from specdec_core import Decoder
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import load_model
from specdec_drafters.ngram.arpa import read_arpa

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

BIGRAM = "digits-ngram/digits-bigram.arpa"


def model_logits(folder: Path) -> Callable[[Tensor], Tensor]:
    """Return a function from token ids `[N, 65]` to the logits of the pixels, `[N, 64, V]`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(rows: Tensor) -> Tensor:
        return torch.cat([model(input_ids=part[:, :-1], use_cache=False).logits for part in rows.split(256)])

    return logits


def bigram_logits(path: Path) -> Callable[[Tensor], Tensor]:
    """Return the same function of a bigram model: what follows the pixel before."""
    tables = read_arpa(path, VOCABULARY_SIZE, 2)
    rows = [torch.from_numpy(tables.row((token,))[:VOCABULARY_SIZE]) for token in range(VOCABULARY_SIZE)]
    table = torch.stack(rows)
    return lambda ids: table[ids[:, :-1]]


def bits_per_pixel(logits: Tensor, rows: Tensor) -> dict[str, float]:
    """Return the mean of -log2 p(pixel), and its standard error over pictures."""
    losses = functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    bits = losses.double().mean(1) / math.log(2)
    return {
        "bits_per_pixel": round(float(bits.mean()), 4),
        "standard_error": round(float(bits.std() / len(bits) ** 0.5), 4),
    }


def drawn(target: Any, each: int, temperature: float, seed: int) -> Tensor:
    """Return pictures that the target draws, `each` of every class, `[10 * each, 65]`."""
    prompts = [[LEVELS + digit] for digit in range(CLASSES) for _ in range(each)]
    decoder = Decoder(target, sampling=SamplingSettings(temperature=temperature))
    result = decoder.generate(prompts, GenerationSettings(max_new_tokens=PIXELS, seed=seed))
    return torch.tensor([[*one.prompt, *one.tokens] for one in result])


def acceptance(p_logits: Tensor, logits: Tensor, *, sample: bool) -> dict[str, float | int]:
    """Return the acceptance rate over some pictures, with its standard error over them."""
    found = Agreement()
    for p, q in zip(p_logits.softmax(-1), logits.softmax(-1), strict=True):
        found.add(p, q, sample=sample)
    return found.alpha()


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Return all results as one object."""
    held_out = torch.from_numpy(read_ids(arguments.work / "test.ids"))
    folders = {role: arguments.models / f"digits-{role}" for role in ("target", "drafter")}
    models = {role: model_logits(folder) for role, folder in folders.items()}
    models["bigram"] = bigram_logits(arguments.models / BIGRAM)
    target = load_model(folders["target"], device="cpu", dtype="float32")
    sampled, greedy = drawn(target, arguments.each, 1.0, arguments.seed), drawn(target, 1, 0.0, arguments.seed)
    result: dict[str, object] = {"held_out_pictures": len(held_out), "drawn_pictures": len(sampled)}
    for role, logits in models.items():
        own: dict[str, object] = bits_per_pixel(logits(held_out), held_out)
        if role in folders:
            model = AutoModelForCausalLM.from_pretrained(folders[role])
            own |= {
                "parameters": count_parameters(model),
                **effort(arguments.work / folders[role].name / "curve.jsonl"),
            }
        if role != "target":
            own["alpha_temperature_1"] = acceptance(models["target"](sampled), logits(sampled), sample=True)
            own["alpha_greedy"] = acceptance(models["target"](greedy), logits(greedy), sample=False)
        result[role] = own
    return result


def main() -> None:
    """Measure the models; see `print_results`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with test.ids and the learning curves")
    parser.add_argument("--each", type=int, default=40, help="pictures to draw of every class")
    print_results(parser, measure)


if __name__ == "__main__":
    main()
