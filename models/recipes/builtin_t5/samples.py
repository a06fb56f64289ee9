"""Generate training text with the target: sampled and greedy outputs for prompts.

The drafter is used on text that the target generates, so it is also trained on such text: outputs for the training
prompts, or with `--prompts fresh` for the new prompts from `fresh`.

Run from the repository root: `python -m recipes.builtin_t5.samples --prompts fresh`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed

from recipes.builtin_pair.parallel import is_first, run
from recipes.builtin_t5.architectures import load_target
from recipes.builtin_t5.batches import Encoded, open_split, pad
from recipes.builtin_t5.vocabulary import END_ID, MAX_TARGET, PAD_ID, WORK

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration


CHUNK = 1024  # prompts between two reports, after which outputs are saved


@torch.inference_mode()
def answer(
    model: T5ForConditionalGeneration,
    sources: list[np.ndarray],
    *,
    sample: bool,
    batch: int = 128,
    max_tokens: int = MAX_TARGET - 1,
) -> list[np.ndarray]:
    """Return a model's output for each source: ids up to and including `</s>`, or the first `max_tokens`.

    Sampling is at temperature 1 from the whole vocabulary, with torch's global generator. Batches contain sources
    of similar length; the outputs are in the order of the sources.
    """
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    answers: dict[int, np.ndarray] = {}
    for first in range(0, len(order), batch):
        indices = order[first : first + batch]
        inputs = pad([sources[index] for index in indices])
        mask = (inputs != PAD_ID).long()
        rows = model.generate(inputs, attention_mask=mask, max_new_tokens=max_tokens, num_beams=1, **options)
        for index, row in zip(indices, rows[:, 1:].numpy(), strict=True):
            ends = np.flatnonzero(row == END_ID)
            answers[index] = row[: ends[0] + 1] if len(ends) else row
    return [answers[index] for index in range(len(sources))]


def choose(data: Encoded, count: int, summaries: float, generator: np.random.Generator) -> np.ndarray:
    """Return `count` pairs of a split, a share `summaries` of them summaries, or all if there are fewer."""
    chosen: list[np.ndarray] = []
    for number, mask in ((round(summaries * count), data.summaries), (count, ~data.summaries)):
        available = np.flatnonzero(mask)
        left = min(number, count - sum(map(len, chosen)), len(available))
        chosen.append(generator.choice(available, left, replace=False))
    return generator.permutation(np.concatenate(chosen))


def keep(path: Path, sources: list[np.ndarray], answers: list[np.ndarray], summaries: np.ndarray) -> None:
    """Write prompts and outputs in the format of an encoded split, atomically."""
    temporary = path.with_suffix(".new.npz")
    np.savez(
        temporary,
        sources=np.concatenate(sources).astype(np.uint16),
        source_starts=np.cumsum([0, *map(len, sources)]),
        targets=np.concatenate(answers).astype(np.uint16),
        target_starts=np.cumsum([0, *map(len, answers)]),
        summaries=summaries,
    )
    temporary.rename(path)


def merge(work: Path, name: str, processes: int) -> None:
    """Merge the files of all processes into one, and remove them."""
    paths = [work / f"{name}.{number}.npz" for number in range(processes)]
    shares = [open_split(work, path.stem) for path in paths]
    sources, answers = (
        [read(share, index) for share in shares for index in range(len(share))]
        for read in (Encoded.source, Encoded.target)
    )
    keep(work / f"{name}.npz", sources, answers, np.concatenate([share.summaries for share in shares]))
    for path in paths:
        path.unlink()


def file_name(prompts: str, kind: str) -> str:
    """Return the file name of outputs: `sampled` and `greedy`, or `fresh_sampled` and `fresh_greedy`."""
    return kind if prompts == "train" else f"{prompts}_{kind}"


def write_samples(arguments: argparse.Namespace) -> None:
    """Generate outputs for this process's share of the prompts; the first process merges them."""
    data = open_split(arguments.work, arguments.prompts)
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    # bfloat16 for speed: `distil` computes the distributions for this text again.
    model = load_target(arguments.work).bfloat16()
    names = {kind: file_name(arguments.prompts, kind) for kind in ("sampled", "greedy")}
    for kind, count in (("sampled", arguments.rows), ("greedy", arguments.greedy_rows)):
        name = names[kind]
        chosen = choose(data, count, arguments.summaries, np.random.default_rng(len(name)))
        own, path = chosen[rank::processes], arguments.work / f"{name}.{rank}.npz"
        sources = [data.source(index) for index in own]
        saved = open_split(arguments.work, path.stem) if arguments.resume and path.exists() else None
        answers = [saved.target(index) for index in range(len(saved))] if saved else []
        for first in range(len(answers), len(own), CHUNK):
            torch.manual_seed(hash((first, rank)))  # the same outputs after an interruption
            began, part = time.monotonic(), sources[first : first + CHUNK]
            outputs = answer(model, part, sample=kind == "sampled")
            rate = sum(map(len, outputs)) / (time.monotonic() - began)
            answers += outputs
            keep(path, sources[: len(answers)], answers, data.summaries[own[: len(answers)]])
            print(f"{name}: {len(answers)} outputs from this process, {rate:.0f} tokens/s", flush=True)
    distributed.barrier()
    for name in names.values() if is_first() else ():
        merge(arguments.work, name, processes)


def main() -> None:
    """Write the outputs to --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", choices=("train", "fresh", "valid"), default="train", help="which prompts")
    parser.add_argument("--rows", type=int, default=16000, help="outputs sampled at temperature 1")
    parser.add_argument("--greedy-rows", type=int, default=6000, help="outputs from greedy decoding")
    parser.add_argument("--summaries", type=float, default=0.25, help="share of summaries")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has saved")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, one per core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with pairs and checkpoints")
    run(write_samples, parser.parse_args())


if __name__ == "__main__":
    main()
