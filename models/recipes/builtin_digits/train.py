"""Train the target on the digits with next-token cross-entropy, and write its folder.

The loop, its learning rate and its checkpoints are those of `specdec train`: after Ctrl-C, the same command with
`--resume` continues. Half of the pictures of a step are moved by a pixel, since there are only 1,500.

Run from the repository root: `python -m recipes.builtin_digits.train --minutes 15`
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from recipes.builtin_digits.data import PIXELS, SHIFTS, VOCABULARY_SIZE, WORK, read_ids, shifted
from specdec_core.interface import ConfigError
from specdec_core.interface.files import writing_folder
from specdec_core.models import without_progress_bar
from specdec_core.study.progress import TerminalProgress
from specdec_drafters.training.checkpoints import TrainingFolder
from specdec_drafters.training.config import TrainingConfig
from specdec_drafters.training.curve import write_curve
from specdec_drafters.training.loop import Objective, StepResult, train
from specdec_drafters.training.sequence_logits import autocast, autocast_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = {"n_embd": 96, "n_layer": 6, "n_head": 4}
POSITIONS = 1 + PIXELS
DROPOUT = 0.1
LEARNING_RATE = 4e-3


def new_model(seed: int) -> GPT2LMHeadModel:
    """Return the untrained target. Its learned positions are those of the class and of each pixel."""
    torch.manual_seed(seed)
    drops = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), DROPOUT)
    ends: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id"))
    # This activation is GELU by the same formula as GPT-2's, in one operation.
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY_SIZE,
            n_positions=POSITIONS,
            activation_function="gelu_pytorch_tanh",
            **SHAPE,
            **drops,
            **ends,
        )
    )


def bits_per_pixel(model: Any, pictures: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean of -log2 p(pixel) given class and earlier pixels, and its standard error over pictures.

    Args:
        model: A causal language model over the recipe's tokens.
        pictures: Token ids, `[N, 65]`.
    """
    with torch.inference_mode():
        bits = torch.cat([pixel_losses(model, rows).mean(1) for rows in torch.from_numpy(pictures).split(256)])
    bits = bits.double() / math.log(2)
    return float(bits.mean()), float(bits.std() / len(bits) ** 0.5)


def pixel_losses(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return -ln p of every pixel, `[B, 64]` float32, for token ids `[B, 65]`."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()  # [B, 64, V]
    return functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")


class PixelObjective:
    """Next-token cross-entropy over the training pictures.

    Args:
        model: The model to train.
        pictures: Token ids to train on, `[N, 65]`.
        held_out: Token ids to evaluate on.
        batch: Pictures per step.
        seed: Seed of their order and of what is moved.
    """

    def __init__(
        self, model: Any, pictures: NDArray[np.int64], held_out: NDArray[np.int64], batch: int, seed: int
    ) -> None:
        self._model = model
        self._choices = np.stack([pictures, *(shifted(pictures, *by) for by in SHIFTS)])  # [5, N, 65]
        self._held_out = held_out
        self._batch = batch
        self._seed = seed
        self._dtype = autocast_dtype("auto", torch.device("cpu"))

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        parameters = dict(self._model.named_parameters())
        return Objective(parameters, self.gradients, self.evaluate, [name for name in parameters if "wte" in name])

    def batch_at(self, step: int) -> torch.Tensor:
        """Return the token ids of a step, `[B, 65]`: a function of the step."""
        draw = np.random.default_rng((self._seed, step))
        count = self._choices.shape[1]
        moved = draw.integers(1, len(self._choices), self._batch) * (draw.random(self._batch) < 0.5)
        return torch.from_numpy(self._choices[moved, draw.integers(count, size=self._batch)])

    def gradients(self, step: int, _: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss."""
        self._model.train()
        rows = self.batch_at(step)
        with autocast(self._dtype, rows.device):
            loss = pixel_losses(self._model, rows).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return StepResult(float(loss.detach()), rows[:, 1:].numel())

    def evaluate(self) -> dict[str, float]:
        """Return bits per pixel of the held-out pictures."""
        self._model.eval()
        bits, error = bits_per_pixel(self._model, self._held_out)
        return {"bits_per_pixel": bits, "bits_per_pixel_error": error}


def main() -> None:
    """Train from the start or from the last checkpoint, and write the model folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder with train.ids and test.ids")
    parser.add_argument("--output", type=Path, default=WORK / "digits-target", help="model folder to write")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--batch", type=int, default=32, help="pictures per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="start over")
    arguments = parser.parse_args()
    pictures, held_out = (read_ids(arguments.work / name) for name in ("train.ids", "test.ids"))
    model = new_model(arguments.seed)
    config = TrainingConfig(
        output=arguments.output,
        text="train.ids",
        minutes=arguments.minutes,
        seed=arguments.seed,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        evaluate_every=50,
        checkpoint_minutes=1.0,
    )
    folder = TrainingFolder(config.output, {**SHAPE, "batch": arguments.batch, "seed": config.seed})
    objective = PixelObjective(model, pictures, held_out, arguments.batch, config.seed).objective()
    with TerminalProgress(Console(stderr=True)) as progress:
        try:
            folder.begin(resume=config.resume, overwrite=config.overwrite)
            trained = train(objective, config, LEARNING_RATE, folder, progress)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from error
    with writing_folder(config.output) as folder, without_progress_bar():
        model.eval().to(torch.float16).save_pretrained(folder)
        write_curve(trained.curve, folder)
    last = trained.curve[-1]
    print(f"{trained.state.step} steps, {last['bits_per_pixel']:.4f} bits per pixel of the held-out pictures")


if __name__ == "__main__":
    main()
