"""Train the target on the corpus with next-token cross-entropy.

The learning rate depends on the elapsed time: warm-up, constant, then linear to zero at the end of `--minutes`.
`--resume` continues an interrupted run; the time before the interruption counts.

Run from the repository root: `python -m recipes.builtin_pair.train --minutes 70`
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from recipes.builtin_pair.architectures import TRAINED_LENGTH, count_parameters, new_model
from recipes.builtin_pair.corpus import WORK
from recipes.builtin_pair.parallel import average_gradients, is_first, own_share, run

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

WARM_UP, FALL = 0.02, 0.5  # shares of the whole run


@dataclass
class Progress:
    """Training progress, stored in a checkpoint with weights and optimizers."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def learning_rate_share(elapsed: float) -> float:
    """Return the learning rate as a share of the peak rate, at `elapsed` (0 to 1) of the run."""
    return max(0.0, min(1.0, elapsed / WARM_UP, (1.0 - elapsed) / FALL))


def windows(stream: np.ndarray, length: int, epoch: int, seed: int) -> np.ndarray:
    """Return the shuffled windows [N, length + 1] of one epoch, which start at a random offset."""
    generator = np.random.default_rng((seed, epoch))
    offset = int(generator.integers(length))
    count = (len(stream) - offset - 1) // length
    starts = offset + length * generator.permutation(count)
    return stream[starts[:, None] + np.arange(length + 1)]


def batch_at(stream: np.ndarray, step: int, size: int, seed: int) -> torch.Tensor:
    """Return the batch [B, length + 1] of a step, which depends only on step and seed."""
    per_epoch = (len(stream) - TRAINED_LENGTH - 1) // TRAINED_LENGTH // size
    epoch, index = divmod(step, per_epoch)
    rows = windows(stream, TRAINED_LENGTH, epoch, seed)[index * size : (index + 1) * size]
    return torch.from_numpy(rows.astype(np.int64))


def make_optimizers(model: LlamaForCausalLM, peak: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for embedding and norms.

    In one-minute trials, Muon reached a held-out loss of 5.7 and AdamW alone 6.8; an hour on a CPU is short enough
    for that to matter. Muon's steps are scaled to the size of AdamW's (`match_rms_adamw`), so that both share a
    learning rate.
    """
    body = [weight for name, weight in model.named_parameters() if weight.dim() > 1 and "embed_tokens" not in name]
    inside = {id(weight) for weight in body}
    rest = [weight for weight in model.parameters() if id(weight) not in inside]
    muon = torch.optim.Muon(body, lr=peak, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=peak, betas=(0.9, 0.95), weight_decay=0.0)]


def loss_of(model: LlamaForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of rows [B, T + 1] in nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits  # [B, T, V]
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: np.ndarray, limit: int = 16) -> float:
    """Return the loss on the first `limit` windows of a fixed shuffle of the held-out stream."""
    rows = torch.from_numpy(windows(stream, TRAINED_LENGTH, 0, 0)[:limit].astype(np.int64))
    model.eval()
    losses = [loss_of(model, part).item() * len(part) for part in rows.split(8)]
    model.train()
    return sum(losses) / len(rows)


def save(
    path: Path,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
) -> None:
    """Write a checkpoint atomically. It holds everything that a resumed run needs."""
    temporary = path.with_suffix(".new")
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "rng": torch.get_rng_state(),
        "progress": vars(progress),
    }
    torch.save(state, temporary)
    temporary.rename(path)


def load(path: Path, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> Progress:
    """Restore a checkpoint in place and return its progress."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    torch.set_rng_state(state["rng"])
    return Progress(**state["progress"])


def update(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Clip the gradients, step the optimizers at a learning rate, and clear the gradients.

    A parameter group with a `factor` uses that times the rate.
    """
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        optimizer.step()
        optimizer.zero_grad()


def report(progress: Progress, loss: float, share: float) -> None:
    """Print one line of progress."""
    print(
        f"{progress.seconds / 60:6.2f} min  step {progress.step:5d}  loss {loss:.3f}  "
        f"rate {share:.2f}  {progress.tokens / 1e6:.2f}M tokens, "
        f"{progress.tokens / progress.seconds:.0f}/s",
        flush=True,
    )


def train(arguments: argparse.Namespace) -> None:
    """Train until the time is up, in each of the processes."""
    stream, held_out = (np.load(arguments.work / f"{name}.npy") for name in ("train", "held_out"))
    model = new_model(arguments.seed).train()
    optimizers = make_optimizers(model, arguments.learning_rate)
    checkpoint = arguments.work / f"{arguments.name or 'target'}.pt"
    progress = load(checkpoint, model, optimizers) if arguments.resume else Progress()
    if is_first():
        print(f"{count_parameters(model)} parameters, {len(stream)} tokens of text", flush=True)

    budget, saved = arguments.minutes * 60.0, progress.seconds
    began = time.monotonic() - progress.seconds
    while progress.seconds < budget:
        share = learning_rate_share(progress.seconds / budget)
        rows = batch_at(stream, progress.step, arguments.batch, arguments.seed)
        loss = loss_of(model, own_share(rows))
        loss.backward()
        # The time is averaged too, so that all processes agree on the learning rate and the end.
        elapsed = time.monotonic() - began
        mean_loss, progress.seconds = average_gradients(model, [loss.item(), elapsed])
        update(model, optimizers, arguments.learning_rate * share)
        progress.step += 1
        progress.tokens += rows[:, 1:].numel()
        done = progress.seconds >= budget
        if is_first() and (progress.step % 20 == 0 or done):
            report(progress, mean_loss, share)
        if progress.seconds - saved > 60.0 * arguments.save_minutes or done:
            saved = progress.seconds
            if is_first():
                save(checkpoint, model, optimizers, progress)
                value = held_out_loss(model, held_out)
                print(f"held-out loss {value:.4f}, perplexity {math.exp(value):.2f}", flush=True)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all training commands, except for the length of a run."""
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--save-minutes", type=float, default=4.0, help="time between checkpoints")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--name", help="name of the checkpoint; default: the model's name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="number of processes, one per core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with the training data")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="windows of 512 tokens per step")
    parser.add_argument("--minutes", type=float, required=True, help="length of the whole run")
    add_common_arguments(parser)
    run(train, parser.parse_args())


if __name__ == "__main__":
    main()
