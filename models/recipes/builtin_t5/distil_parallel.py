"""Distil the target's distribution into the parallel drafter, at every depth of a draft.

The loss and the mask tokens are those of `specdec train parallel`. The texts, the order of batches and the
learning rates are those of `distil`. As there, the encoder is the target's and is not trained.

Run from the repository root: `python -m recipes.builtin_t5.distil_parallel --steps 2000`
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import torch

from recipes.builtin_pair.architectures import count_parameters
from recipes.builtin_pair.parallel import is_first, run
from recipes.builtin_t5.architectures import DEPTH, PARALLEL_FOLDER, load_target, shortened
from recipes.builtin_t5.batches import Batch, collect, open_split
from recipes.builtin_t5.distil import add_target_argument, mixed_draws
from recipes.builtin_t5.train import add_arguments, loop
from recipes.builtin_t5.vocabulary import PAD_ID
from specdec_core.models import wrap_model
from specdec_drafters.parallel.config import ParallelTrainerConfig
from specdec_drafters.parallel.trainer import ParallelDistillation
from specdec_drafters.training.rows import Rows
from specdec_drafters.training.sources import TrainingData

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import T5ForConditionalGeneration

HELD_OUT = 100  # prompts on whose outputs the drafter is measured with every checkpoint


def rows_of(batch: Batch) -> Rows:
    """Return a batch in the form of the trainer, with the start token."""
    tokens = torch.nn.functional.pad(batch.targets, (1, 0), value=PAD_ID)
    mask = torch.nn.functional.pad(batch.targets != PAD_ID, (1, 0), value=False)
    return Rows(tokens, mask, batch.sources, batch.sources != PAD_ID)


def held_out(work: Path) -> Rows:
    """Return outputs that the target sampled for prompts of the validation set."""
    data = open_split(work, "valid_sampled")
    return rows_of(collect(data, np.arange(min(HELD_OUT, len(data)))))


def objective(
    target: T5ForConditionalGeneration, drafter: T5ForConditionalGeneration, rows: Rows, retention: float
) -> ParallelDistillation:
    """Return the loss and the measurements of the trainer.

    Args:
        target: The target.
        drafter: The model to train.
        rows: Texts to measure on.
        retention: The share of the drafts of one depth that is trained at the next.
    """
    # The trainer's own data is not used.
    config = ParallelTrainerConfig(output=PARALLEL_FOLDER, samples=1, depth=DEPTH, retention=retention)
    wrapped = [wrap_model(model) for model in (target, drafter)]
    for model in (target, drafter):
        model.set_attn_implementation("eager")  # see `train.begin`
    drafter.get_encoder().requires_grad_(False)
    return ParallelDistillation(config, *wrapped, TrainingData((rows,), rows), torch.bfloat16)


def distil(arguments: argparse.Namespace) -> None:
    """Train the drafter, in each of the processes."""
    target = load_target(arguments.work, arguments.target)
    drafter = shortened(target, "parallel")
    trained = objective(target, drafter, held_out(arguments.work), arguments.retention)
    if is_first():
        print(f"{count_parameters(drafter)} parameters", flush=True)
    loop(
        arguments,
        drafter,
        mixed_draws(arguments),
        lambda draw, elapsed: next(trained.losses(rows_of(draw.batch), elapsed)),
        trained.measure,
    )


def main() -> None:
    """Parse the command line and distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    add_target_argument(parser)
    parser.add_argument(
        "--retention", type=float, default=0.6, help="share of the drafts kept from depth to depth"
    )
    parser.set_defaults(model="parallel", learning_rate=3e-3)
    run(distil, parser.parse_args())


if __name__ == "__main__":
    main()
