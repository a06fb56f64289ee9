"""Store the target's distribution at every position of the training text, truncated to its most probable tokens.

A forward pass of the target costs far more than one of the drafter, and the drafter sees each text several times.
So the K most probable tokens and their probabilities are stored, in half precision.

Run from the repository root: `python -m recipes.builtin_pair.teacher`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed

from recipes.builtin_pair.architectures import TRAINED_LENGTH
from recipes.builtin_pair.corpus import WORK
from recipes.builtin_pair.parallel import is_first, run
from recipes.builtin_pair.samples import load_checkpoint
from recipes.builtin_pair.train import windows

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TOP_K = 64  # stored tokens of each distribution
BATCH_TOKENS = 4096
PARTS = {"ids": np.uint16, "probabilities": np.float16}


@torch.inference_mode()
def top_of_target(model: LlamaForCausalLM, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and probabilities, [B, T, TOP_K] each, of the most probable tokens after rows [B, T]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows, use_cache=False).logits
    top = logits.float().softmax(-1).topk(TOP_K, dim=-1)
    return top.indices.numpy().astype(np.uint16), top.values.numpy().astype(np.float16)


def create(work: Path, name: str, rows: np.ndarray) -> None:
    """Save rows [N, L] and create empty files for the target's distributions."""
    shape = (len(rows), rows.shape[1] - 1, TOP_K)
    np.save(work / f"{name}.rows.npy", rows)
    for part, kind in PARTS.items():
        np.lib.format.open_memmap(work / f"{name}.{part}.npy", "w+", kind, shape)


def teach(model: LlamaForCausalLM, name: str, work: Path) -> None:
    """Write the distributions of this process's share of the rows."""
    rows = np.load(work / f"{name}.rows.npy")
    ids, probabilities = (np.load(work / f"{name}.{part}.npy", mmap_mode="r+") for part in PARTS)
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    step, began = BATCH_TOKENS // (rows.shape[1] - 1), time.monotonic()
    for start in range(rank * step, len(rows), processes * step):
        part = slice(start, start + step)
        inputs = torch.from_numpy(rows[part, :-1].astype(np.int64))
        ids[part], probabilities[part] = top_of_target(model, inputs)
        if is_first() and start // step % 40 == 0:
            done = min(start + processes * step, len(rows))
            minutes = (time.monotonic() - began) / 60
            print(f"{name}: {done} of {len(rows)} rows in {minutes:.1f} minutes", flush=True)


def teach_all(arguments: argparse.Namespace) -> None:
    """Store the target's distributions on its own samples and on the corpus."""
    work = arguments.work
    if is_first():
        corpus = windows(np.load(work / "train.npy"), TRAINED_LENGTH, 0, 1)
        create(work, "corpus", corpus[: arguments.corpus_rows])
        for name in ("sampled", "greedy"):
            create(work, name, np.load(work / f"{name}.npy"))
    distributed.barrier()
    model = load_checkpoint("target", work)
    for name in ("sampled", "greedy", "corpus"):
        teach(model, name, work)


def main() -> None:
    """Parse the command line and store the distributions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus-rows", type=int, default=2000, help="windows of training text")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, one per core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with checkpoints and samples")
    run(teach_all, parser.parse_args())


if __name__ == "__main__":
    main()
