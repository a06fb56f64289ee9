"""Distil the target's distribution into the drafter.

The acceptance rate is alpha = E[sum_x min(p(x), q(x))] = 1 - E[TV(p, q)] (Corollary 3.6 of arXiv 2211.17192), so
the loss should be the total variation. Its gradient is poor while q is far from p, so the loss starts as KL(p ||
q) and moves to TV. A small cross-entropy on the next token shapes the tail that the stored distributions leave
out.

Run from the repository root: `python -m recipes.builtin_pair.distil --minutes 15`
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from recipes.builtin_pair.architectures import count_parameters, new_model
from recipes.builtin_pair.parallel import average_gradients, is_first, own_share, run
from recipes.builtin_pair.train import (
    Progress,
    add_arguments,
    learning_rate_share,
    load,
    make_optimizers,
    save,
    update,
)
from specdec_drafters.training.losses import TV_SCALE, tv_share

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BATCH_TOKENS = 4096
TINY = 1e-6


@dataclass(frozen=True)
class Source:
    """Rows with the target's most probable tokens, and the share of steps that use them."""

    name: str
    share: float
    hard: float  # weight of the cross-entropy on the next token
    rows: np.ndarray  # [N, L]
    ids: np.ndarray  # [N, L - 1, K]
    probabilities: np.ndarray  # [N, L - 1, K]

    def batch_rows(self) -> int:
        """Return the number of rows in a batch, an even number that two processes can share."""
        return BATCH_TOKENS // (self.rows.shape[1] - 1) // 2 * 2

    def batch(self, generator: np.random.Generator) -> tuple[torch.Tensor, ...]:
        """Return random rows [B, L], target ids and probabilities [B, L - 1, K]."""
        size = self.batch_rows()
        chosen = np.sort(generator.choice(len(self.rows), size, replace=len(self.rows) < size))
        return (
            torch.from_numpy(self.rows[chosen].astype(np.int64)),
            torch.from_numpy(self.ids[chosen].astype(np.int64)),
            torch.from_numpy(self.probabilities[chosen].astype(np.float32)),
        )


def open_source(work: Path, name: str, share: float, hard: float) -> Source:
    """Memory-map the arrays that `teacher` wrote."""
    rows, ids, probabilities = (
        np.load(work / f"{name}.{part}.npy", mmap_mode="r") for part in ("rows", "ids", "probabilities")
    )
    return Source(name, share, hard, rows, ids, probabilities)


def divergences(logits: torch.Tensor, ids: torch.Tensor, p_top: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return KL(p || q) and TV(p, q), means over positions.

    All tokens that are not stored count as one additional token, for p and for q.

    Args:
        logits: The drafter's, [B, T, V].
        ids: The target's most probable tokens, [B, T, K].
        p_top: Their probabilities under the target, [B, T, K].

    Returns:
        Two scalars with gradients.
    """
    log_q = logits - logits.logsumexp(-1, keepdim=True)
    log_q_top = log_q.gather(-1, ids)
    q_top = log_q_top.exp()
    p_tail = (1.0 - p_top.sum(-1)).clamp_min(0.0)
    q_tail = (1.0 - q_top.sum(-1)).clamp_min(TINY)
    kl = (p_top * ((p_top + TINY).log() - log_q_top)).sum(-1)
    kl = kl + p_tail * ((p_tail + TINY).log() - q_tail.log())
    tv = 1.0 - torch.minimum(p_top, q_top).sum(-1) - torch.minimum(p_tail, q_tail)
    return kl.mean(), tv.mean()


def distil_step(
    model: LlamaForCausalLM, batch: tuple[torch.Tensor, ...], share: float, hard: float
) -> tuple[float, float]:
    """Accumulate the gradients of one batch in parts; return its KL and TV.

    `share` is the share of the total variation in the loss, `hard` the weight of the cross-entropy on the next
    token.
    """
    parts = list(zip(*(tensor.split(8) for tensor in batch), strict=True))
    size = len(batch[0])
    sums = torch.zeros(2)
    for rows, ids, p_top in parts:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        logits = logits.float()
        kl, tv = divergences(logits, ids, p_top)
        ce = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss = (1.0 - share) * kl + TV_SCALE * share * tv + hard * ce
        (loss * (len(rows) / size)).backward()
        sums += torch.tensor([kl.item(), tv.item()]) * (len(rows) / size)
    return sums[0].item(), sums[1].item()


def open_sources(work: Path) -> list[Source]:
    """Return the three kinds of training text: corpus, sampled and greedy output of the target."""
    return [
        open_source(work, "corpus", 0.35, 0.1),
        open_source(work, "sampled", 0.45, 0.1),
        open_source(work, "greedy", 0.20, 0.3),
    ]


def report(progress: Progress, kl: float, tv_means: dict[str, float]) -> None:
    """Print one line of progress."""
    alphas = ", ".join(f"{name} {1 - mean:.3f}" for name, mean in tv_means.items())
    print(
        f"{progress.seconds / 60:6.2f} min  step {progress.step:5d}  "
        f"{progress.tokens / 1e6:.2f}M tokens  kl {kl:.3f}  alpha about {alphas}",
        flush=True,
    )


def distil(arguments: argparse.Namespace) -> None:
    """Train until the time is up, in each of the processes."""
    sources = open_sources(arguments.work)
    model = new_model(arguments.model, arguments.seed).train()
    optimizers = make_optimizers(model, arguments.learning_rate)
    checkpoint = arguments.work / f"{arguments.name or arguments.model}.pt"
    progress = load(checkpoint, model, optimizers) if arguments.resume else Progress()
    if is_first():
        print(f"{count_parameters(model)} parameters", flush=True)

    budget, saved = arguments.minutes * 60.0, progress.seconds
    began = time.monotonic() - progress.seconds
    tv_means = {source.name: 1.0 for source in sources}
    while progress.seconds < budget:
        done = progress.seconds / budget
        generator = np.random.default_rng((arguments.seed, progress.step))
        source = sources[generator.choice(len(sources), p=[source.share for source in sources])]
        batch = tuple(own_share(tensor) for tensor in source.batch(generator))
        kl, tv = distil_step(model, batch, tv_share("kl-then-tv", done), source.hard)
        # The time is averaged too, so that all processes agree on the learning rate and the end.
        numbers = [kl, tv, time.monotonic() - began]
        kl, tv, progress.seconds = average_gradients(model, numbers)
        update(model, optimizers, arguments.learning_rate * learning_rate_share(done))
        progress.step += 1
        progress.tokens += source.batch_rows() * (source.rows.shape[1] - 1)
        tv_means[source.name] += 0.1 * (tv - tv_means[source.name])
        if is_first() and progress.step % 50 == 0:
            report(progress, kl, tv_means)
        if progress.seconds - saved > 60.0 * arguments.save_minutes or progress.seconds >= budget:
            saved = progress.seconds
            if is_first():
                save(checkpoint, model, optimizers, progress)


def main() -> None:
    """Parse the command line and distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.set_defaults(model="drafter", learning_rate=6e-3, save_minutes=3.0)
    run(distil, parser.parse_args())


if __name__ == "__main__":
    main()
