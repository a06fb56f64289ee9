"""Distil the target's distribution into the drafter.

The acceptance rate is alpha = E[sum_x min(p(x), q(x))] = 1 - E[TV(p, q)] (Corollary 3.6 of arXiv 2211.17192), so
the loss should be the total variation. Its gradient is poor while q is far from p, so the loss starts as KL(p ||
q) and moves to TV, as for the built-in pair. The target runs in every step: this costs less than storing its
distributions.

The drafter has the target's encoder, embeddings and output embedding, which are not trained: the encoder runs once
for both, and the drafter's folder holds its decoder only. The decoder starts as the target's first layer. With
`--train-head` the output embedding is trained, too, for a first run that another starts from.

Run from the repository root: `python -m recipes.builtin_t5.distil --steps 4000`
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from recipes.builtin_pair.architectures import count_parameters, load_weights
from recipes.builtin_pair.parallel import is_first, run
from recipes.builtin_t5.architectures import load_target, shortened
from recipes.builtin_t5.batches import open_split
from recipes.builtin_t5.train import Draw, add_arguments, draws, encoder_states, logits_of, loop
from recipes.builtin_t5.vocabulary import PAD_ID
from specdec_drafters.training.losses import distillation, tv_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import T5ForConditionalGeneration

# Share of the steps that use each source. Missing sources (see `samples`) are skipped.
SHARES = {"train": 0.10, "sampled": 0.10, "greedy": 0.10, "fresh_sampled": 0.35, "fresh_greedy": 0.35}
HARD = 0.1  # weight of the cross-entropy on the next token


def mixed_draws(arguments: argparse.Namespace) -> Iterator[Draw]:
    """Yield the training data of each step, from a randomly chosen source."""
    found = [name for name in SHARES if (arguments.work / f"{name}.npz").exists()]
    if is_first():
        print(f"drawing from: {', '.join(found)}", flush=True)
    shares = np.array([SHARES[name] for name in found])
    sources = [draws(open_split(arguments.work, name), arguments) for name in found]
    for step in itertools.count():
        chosen = np.random.default_rng((arguments.seed, step)).choice(len(found), p=shares / shares.sum())
        yield next(sources[chosen])


class Distillation:
    """The distillation loss, with a running mean of the acceptance rate for the log."""

    def __init__(self, target: T5ForConditionalGeneration, drafter: T5ForConditionalGeneration) -> None:
        self.target = target
        self.drafter = drafter
        self.alpha = 0.0
        self.steps = 0

    def __call__(self, draw: Draw, elapsed: float) -> torch.Tensor:
        """Return the loss summed over a batch's target tokens; `elapsed` is the elapsed share of the run."""
        with torch.no_grad():
            encoded = encoder_states(self.target, draw.batch)
            p_logits = logits_of(self.target, draw.batch, encoded)
        q_logits = logits_of(self.drafter, draw.batch, encoded)
        soft, tv = distillation(p_logits, q_logits, tv_share("kl-then-tv", elapsed))
        labels = draw.batch.targets[draw.batch.targets != PAD_ID]
        hard = functional.cross_entropy(q_logits, labels, reduction="sum")
        self._record(1.0 - tv.item() / len(labels))
        return soft + HARD * hard

    def _record(self, alpha: float) -> None:
        self.steps += 1
        self.alpha += (alpha - self.alpha) / min(self.steps, 50)
        if self.steps % 50 == 0 and is_first():
            print(f"alpha over this process's last batches about {self.alpha:.3f}", flush=True)


def distil(arguments: argparse.Namespace) -> None:
    """Train the drafter, in each of the processes."""
    target = load_target(arguments.work, arguments.target)
    target.set_attn_implementation("eager")
    drafter = shortened(target)
    if arguments.start is not None:
        load_weights(drafter, arguments.start)
    drafter.set_attn_implementation("eager")
    drafter.train().encoder.requires_grad_(False)
    if not arguments.train_head:
        drafter.lm_head.requires_grad_(False).load_state_dict(target.lm_head.state_dict())
    if is_first():
        trained = sum(weight.numel() for weight in drafter.parameters() if weight.requires_grad)
        print(f"{count_parameters(drafter)} parameters, {trained} of them trained", flush=True)
    loop(arguments, drafter, mixed_draws(arguments), Distillation(target, drafter))


def add_target_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the target."""
    parser.add_argument(
        "--target", type=Path, help="the target's checkpoint; default: target.pt in --work, or the shipped weights"
    )


def main() -> None:
    """Parse the command line and distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    add_target_argument(parser)
    parser.add_argument("--train-head", action="store_true", help="train the output embedding, too")
    parser.set_defaults(model="drafter", learning_rate=3e-3)
    run(distil, parser.parse_args())


if __name__ == "__main__":
    main()
