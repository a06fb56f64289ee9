"""Train the target (or, for a first test, the drafter) on the pairs with cross-entropy.

The learning rate depends on the step: warm-up, constant, then linear to zero at the last of `--steps`. `--resume`
continues an interrupted run.

Run from the repository root: `python -m recipes.builtin_t5.train --model target --steps 2000`
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

from recipes.builtin_pair.architectures import count_parameters, load_weights
from recipes.builtin_pair.parallel import average_gradients, is_first, run
from recipes.builtin_pair.train import (
    Progress,
    add_common_arguments,
    learning_rate_share,
    load,
    report,
    save,
    update,
)
from recipes.builtin_t5.architectures import FOLDERS, new_model
from recipes.builtin_t5.batches import Batch, Encoded, batches_of, collect, in_order, open_split
from recipes.builtin_t5.vocabulary import PAD_ID, WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transformers import T5ForConditionalGeneration

TASKS = ("translate", "summarize")


def make_optimizers(
    model: T5ForConditionalGeneration, peak: float, embedding_factor: float
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for the rest.

    T5 does not divide the product of query and key by the square root of their width. Its query weights are
    smaller by this factor instead, and so is their learning rate. The embedding is initialized with a standard
    deviation of 1 instead of 0.02, and has a larger learning rate.
    """
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    outside = ("shared", "lm_head", "relative_attention_bias")
    body = [(name, w) for name, w in named if w.dim() > 1 and not any(part in name for part in outside)]
    inside = {name for name, _ in body}
    queries = {"params": [w for name, w in body if name.endswith(".q.weight")], "factor": model.config.d_kv**-0.5}
    others = {"params": [w for name, w in body if not name.endswith(".q.weight")]}
    muon = torch.optim.Muon([queries, others], lr=peak, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    embedding: dict[str, Any] = {
        "params": [w for name, w in named if "shared" in name],
        "factor": embedding_factor,
    }
    rest: dict[str, Any] = {"params": [w for name, w in named if name not in inside and "shared" not in name]}
    return [muon, torch.optim.AdamW([embedding, rest], lr=peak, betas=(0.9, 0.95), weight_decay=0.0)]


def encoder_states(model: T5ForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Return the encoder's output for the sources, [B, S, D]."""
    mask = (batch.sources != PAD_ID).long()
    with torch.autocast("cpu", torch.bfloat16):
        return model.encoder(input_ids=batch.sources, attention_mask=mask).last_hidden_state


def logits_of(
    model: T5ForConditionalGeneration, batch: Batch, encoded: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the logits [N, V] at the N target positions without padding, row by row.

    Args:
        model: Only its decoder runs if the encoder's output is given.
        batch: The pairs.
        encoded: See `encoder_states`.
    """
    encoded = encoder_states(model, batch) if encoded is None else encoded
    mask = (batch.sources != PAD_ID).long()
    start = torch.full_like(batch.targets[:, :1], PAD_ID)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.decoder(
            input_ids=torch.cat([start, batch.targets[:, :-1]], dim=1),
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state[batch.targets != PAD_ID]
        if model.config.scale_decoder_outputs:
            hidden = hidden * model.config.d_model**-0.5
        return model.lm_head(hidden).float()


def losses_of(model: T5ForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of each target token, [N], in nats."""
    targets = batch.targets[batch.targets != PAD_ID]
    return functional.cross_entropy(logits_of(model, batch), targets, reduction="none")


@torch.no_grad()
def held_out_loss(
    model: T5ForConditionalGeneration, data: Encoded, limit: int | None = None, budget: int = 4096
) -> dict[str, float]:
    """Return the loss per target token of each task, on its first `limit` pairs, or on all if None."""
    model.eval()
    result = {}
    for task in TASKS:
        indices = np.flatnonzero(data.summaries == (task == "summarize"))[:limit]
        losses = [losses_of(model, batch) for batch in in_order(data, indices, budget)]
        result[task] = torch.cat(losses).mean().item() if losses else float("nan")
    model.train()
    return result


@dataclass(frozen=True)
class Draw:
    """The training data of a step."""

    data: Encoded
    indices: np.ndarray  # of the pairs of all processes
    batch: Batch  # this process's share


def draws(data: Encoded, arguments: argparse.Namespace) -> Iterator[Draw]:
    """Yield the training data of each step, in an order that depends on the seed."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    for indices in batches_of(data, arguments.seed, arguments.batch, arguments.summaries, world):
        yield Draw(data, indices, collect(data, indices, rank, world))


def loop(
    arguments: argparse.Namespace,
    model: T5ForConditionalGeneration,
    steps: Iterator[Draw],
    loss_of: Callable[[Draw, float], torch.Tensor],
    measure: Callable[[], Mapping[str, float]] | None = None,
) -> None:
    """Train a model for `--steps` steps, in each of the processes.

    Args:
        arguments: The command line.
        model: Trained in place. With `--resume`, its weights and the progress come from its checkpoint.
        steps: The training data of each step.
        loss_of: Returns the loss summed over this process's target tokens, given the training data and the elapsed
            share of the run.
        measure: Returns what to print with every checkpoint; by default, the held-out loss of each task.
    """
    valid = open_split(arguments.work, "valid")
    optimizers = make_optimizers(model, arguments.learning_rate, arguments.embedding_factor)
    checkpoint = arguments.work / f"{arguments.name or arguments.model}.pt"
    progress = load(checkpoint, model, optimizers) if arguments.resume else Progress()
    # Dropout differs between the processes, and after a resumed run from what it was at the beginning.
    torch.manual_seed(hash((arguments.seed, progress.step, distributed.get_rank())))
    saved, began = progress.seconds, time.monotonic() - progress.seconds
    for draw in itertools.islice(steps, progress.step, arguments.steps):
        elapsed = (progress.step + 0.5) / arguments.steps
        share = learning_rate_share(elapsed)
        # Processes have different numbers of tokens; this makes their average the mean over all tokens.
        loss = loss_of(draw, elapsed) * (distributed.get_world_size() / draw.batch.tokens)
        loss.backward()
        numbers = [loss.item(), time.monotonic() - began]
        mean_loss, progress.seconds = average_gradients(model, numbers)
        update(model, optimizers, arguments.learning_rate * share)
        progress.step += 1
        progress.tokens += draw.batch.tokens + int(np.diff(draw.data.source_starts)[draw.indices].sum())
        done = progress.step == arguments.steps
        if is_first() and (progress.step % 50 == 0 or done):
            report(progress, mean_loss, share)
        if is_first() and (progress.seconds - saved > 60.0 * arguments.save_minutes or done):
            saved = progress.seconds
            save(checkpoint, model, optimizers, progress)
            found = held_out_loss(model, valid, limit=200) if measure is None else measure()
            print("held-out: " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()), flush=True)


def begin(arguments: argparse.Namespace) -> T5ForConditionalGeneration:
    """Return the model to train, from scratch or from `--start`.

    Attention is computed step by step: for such short texts in bfloat16, PyTorch's fused attention on a CPU makes
    a training step a third slower.
    """
    model = new_model(arguments.model, arguments.seed, arguments.dropout)
    if arguments.start is not None:
        load_weights(model, arguments.start)
    model.set_attn_implementation("eager")
    return model.train()


def train(arguments: argparse.Namespace) -> None:
    """Train on the pairs, in each of the processes."""
    data = open_split(arguments.work, "train")
    model = begin(arguments)
    if is_first():
        print(f"{count_parameters(model)} parameters, {len(data)} pairs", flush=True)
    loop(arguments, model, draws(data, arguments), lambda draw, _: losses_of(model, draw.batch).sum())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all training commands."""
    parser.add_argument("--steps", type=int, required=True, help="length of the whole run")
    add_common_arguments(parser)
    parser.add_argument("--start", type=Path, help="checkpoint to start from, rather than from scratch")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of the activations that are dropped")
    parser.add_argument(
        "--embedding-factor",
        type=float,
        default=12.0,
        help="learning rate of the embedding relative to the others",
    )
    parser.add_argument("--batch", type=int, default=12288, help="tokens per step, including padding")
    parser.add_argument("--summaries", type=float, default=1.0, help="how often an epoch contains each summary")
    parser.set_defaults(learning_rate=5e-3, work=WORK)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(FOLDERS), default="target")
    add_arguments(parser)
    run(train, parser.parse_args())


if __name__ == "__main__":
    main()
