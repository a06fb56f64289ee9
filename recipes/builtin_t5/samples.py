"""Let the target answer prompts, sampled at temperature 1 and by argmax.

The drafter is used on text the target has written, so it is also trained on such text: its answers to the training
prompts, or with `--prompts fresh` to those that `fresh` made, which it has never seen.

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
from recipes.builtin_t5.architectures import load_checkpoint
from recipes.builtin_t5.batches import Encoded, open_split, pad
from recipes.builtin_t5.vocabulary import END_ID, MOST_TARGET, PAD_ID, WORK

if TYPE_CHECKING:
    from transformers import T5ForConditionalGeneration


AT_ONCE = 1024  # prompts between two lines of progress


@torch.inference_mode()
def answer(
    model: T5ForConditionalGeneration,
    sources: list[np.ndarray],
    *,
    sample: bool,
    batch: int = 128,
    most: int = MOST_TARGET - 1,
) -> list[np.ndarray]:
    """Return what a model answers each source: ids up to and with `</s>`, or the first `most`.

    Sampling is at temperature 1 from the whole vocabulary, with torch's own generator. Sources of like length
    are answered together; the answers come in the order of the sources.
    """
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    answers: dict[int, np.ndarray] = {}
    for first in range(0, len(order), batch):
        places = order[first : first + batch]
        inputs = pad([sources[place] for place in places])
        mask = (inputs != PAD_ID).long()
        rows = model.generate(inputs, attention_mask=mask, max_new_tokens=most, num_beams=1, **options)
        for place, row in zip(places, rows[:, 1:].numpy(), strict=True):
            ends = np.flatnonzero(row == END_ID)
            answers[place] = row[: ends[0] + 1] if len(ends) else row
    return [answers[place] for place in range(len(sources))]


def choose(data: Encoded, count: int, summaries: float, generator: np.random.Generator) -> np.ndarray:
    """Return `count` pairs of a split, the share `summaries` of them summaries, or all where there are fewer."""
    chosen: list[np.ndarray] = []
    for wanted, among in ((round(summaries * count), data.summaries), (count, ~data.summaries)):
        there = np.flatnonzero(among)
        left = min(wanted, count - sum(map(len, chosen)), len(there))
        chosen.append(generator.choice(there, left, replace=False))
    return generator.permutation(np.concatenate(chosen))


def keep(path: Path, sources: list[np.ndarray], answers: list[np.ndarray], summaries: np.ndarray) -> None:
    """Write prompts and answers in the form of an encoded split."""
    np.savez(
        path,
        sources=np.concatenate(sources).astype(np.uint16),
        source_starts=np.cumsum([0, *map(len, sources)]),
        targets=np.concatenate(answers).astype(np.uint16),
        target_starts=np.cumsum([0, *map(len, answers)]),
        summaries=summaries,
    )


def put_together(work: Path, name: str, processes: int) -> None:
    """Make one file of the shares of all processes, and remove these."""
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
    """Return what the answers to some prompts are called: `sampled` and `greedy`, or `fresh_sampled` and so on."""
    return kind if prompts == "train" else f"{prompts}_{kind}"


def write_samples(arguments: argparse.Namespace) -> None:
    """Answer this process's share of the prompts; the first process puts the shares together."""
    data = open_split(arguments.work, arguments.prompts)
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    # Half the bits for speed: this text is only practice material, the teacher is asked anew.
    model = load_checkpoint("target", arguments.work / "target.pt").bfloat16()
    torch.manual_seed(rank)
    names = {kind: file_name(arguments.prompts, kind) for kind in ("sampled", "greedy")}
    for kind, count in (("sampled", arguments.rows), ("greedy", arguments.greedy_rows)):
        name = names[kind]
        chosen = choose(data, count, arguments.summaries, np.random.default_rng(len(name)))
        own, began, answers = chosen[rank::processes], time.monotonic(), []
        sources = [data.source(index) for index in own]
        for first in range(0, len(own), AT_ONCE):
            answers += answer(model, sources[first : first + AT_ONCE], sample=kind == "sampled")
            rate = sum(map(len, answers)) / (time.monotonic() - began)
            print(f"{name}: {len(answers)} answers by this process, {rate:.0f} tokens/s", flush=True)
        keep(arguments.work / f"{name}.{rank}.npz", sources, answers, data.summaries[own])
    distributed.barrier()
    for name in names.values() if is_first() else ():
        put_together(arguments.work, name, processes)


def main() -> None:
    """Write the answers below --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", choices=("train", "fresh"), default="train", help="what is answered")
    parser.add_argument("--rows", type=int, default=16000, help="answers sampled at temperature 1")
    parser.add_argument("--greedy-rows", type=int, default=6000, help="answers by argmax")
    parser.add_argument("--summaries", type=float, default=0.25, help="share of summaries among them")
    parser.add_argument("--processes", type=int, default=2, help="one for each core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with pairs and checkpoints")
    run(write_samples, parser.parse_args())


if __name__ == "__main__":
    main()
