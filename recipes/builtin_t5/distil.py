"""Train the drafter to say what the target would say.

The acceptance rate is alpha = E[sum_x min(p(x), q(x))] = 1 - E[TV(p, q)] (Corollary 3.6 of
arXiv 2211.17192), so the total variation is what counts in the end. Its gradient is poor while q is
far from p; the loss therefore begins as KL(p || q) and moves over to TV, as for the built-in pair. The
target is asked anew at every step: its forward pass costs less than to store what it says.

Run from the repository root: `python -m recipes.builtin_t5.distil --minutes 20`
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
from recipes.builtin_t5.architectures import load_checkpoint, new_model
from recipes.builtin_t5.batches import open_split
from recipes.builtin_t5.train import Draw, add_arguments, draws, logits_of, loop
from recipes.builtin_t5.vocabulary import PAD_ID
from specdec_drafters.training.losses import distillation, tv_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import T5ForConditionalGeneration

# What is drawn from, and how often; what is not there (see `samples`) is done without.
SHARES = {"train": 0.15, "sampled": 0.10, "greedy": 0.10, "fresh_sampled": 0.40, "fresh_greedy": 0.25}
HARD = 0.1  # weight of the cross-entropy on the token that follows


def mixed_draws(arguments: argparse.Namespace) -> Iterator[Draw]:
    """Yield what each step learns from, from one source or another by chance."""
    there = [name for name in SHARES if (arguments.work / f"{name}.npz").exists()]
    if is_first():
        print(f"drawing from: {', '.join(there)}", flush=True)
    shares = np.array([SHARES[name] for name in there])
    sources = [draws(open_split(arguments.work, name), arguments) for name in there]
    for step in itertools.count():
        chosen = np.random.default_rng((arguments.seed, step)).choice(len(there), p=shares / shares.sum())
        yield next(sources[chosen])


class Distillation:
    """The loss of a drafter against a target, with a running mean of alpha for the log."""

    def __init__(self, target: T5ForConditionalGeneration, drafter: T5ForConditionalGeneration) -> None:
        self.target = target
        self.drafter = drafter
        self.alpha = 0.0
        self.steps = 0

    def __call__(self, draw: Draw, elapsed: float) -> torch.Tensor:
        """Return the loss summed over a draw's target tokens; `elapsed` is the share of the run that is over."""
        with torch.no_grad():
            p_logits = logits_of(self.target, draw.batch)
        q_logits = logits_of(self.drafter, draw.batch)
        soft, tv = distillation(p_logits, q_logits, tv_share("kl-then-tv", elapsed))
        follows = draw.batch.targets[draw.batch.targets != PAD_ID]
        hard = functional.cross_entropy(q_logits, follows, reduction="sum")
        self._note(1.0 - tv.item() / len(follows))
        return soft + HARD * hard

    def _note(self, alpha: float) -> None:
        self.steps += 1
        self.alpha += (alpha - self.alpha) / min(self.steps, 50)
        if self.steps % 50 == 0 and is_first():
            print(f"alpha over this process's last batches about {self.alpha:.3f}", flush=True)


def distil(arguments: argparse.Namespace) -> None:
    """Train the drafter, as one of the processes."""
    target = load_checkpoint("target", arguments.target or arguments.work / "target.pt")
    drafter = new_model("drafter", arguments.seed).train()
    if arguments.start is not None:
        load_weights(drafter, arguments.start).train()
    if is_first():
        print(f"{count_parameters(drafter)} parameters", flush=True)
    loop(arguments, drafter, mixed_draws(arguments), Distillation(target, drafter))


def main() -> None:
    """Read the arguments and distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--target", type=Path, help="the target's checkpoint, if not target.pt of --work")
    parser.add_argument("--start", type=Path, help="a drafter's checkpoint to begin from, instead of from scratch")
    parser.set_defaults(model="drafter", learning_rate=8e-3)
    run(distil, parser.parse_args())


if __name__ == "__main__":
    main()
