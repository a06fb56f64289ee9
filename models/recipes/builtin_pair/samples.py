"""Generate training text with the target: sampled and greedy continuations of training prompts.

The drafter is used on text that the target generates, so it is also trained on such text. A row is a prompt and
its continuation. An end-of-text token does not end a row; a new document starts instead.

Run from the repository root: `python -m recipes.builtin_pair.samples`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from transformers import DynamicCache, LlamaForCausalLM

from recipes.builtin_pair.architectures import load_weights, new_model
from recipes.builtin_pair.corpus import WORK
from recipes.builtin_pair.parallel import is_first, run

PROMPT_LENGTH = 64
ROW_LENGTH = 321  # a prompt, its continuation, and one more token to predict


def load_checkpoint(role: str, work: Path) -> LlamaForCausalLM:
    """Load a trained model from its checkpoint, in evaluation mode."""
    return load_weights(new_model(role, seed=0), work / f"{role}.pt")


def training_prompts(stream: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return random windows [N, PROMPT_LENGTH] of the training text."""
    starts = generator.integers(len(stream) - PROMPT_LENGTH, size=count)
    return stream[starts[:, None] + np.arange(PROMPT_LENGTH)]


@torch.inference_mode()
def continue_rows(
    model: LlamaForCausalLM, prompts: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """Continue prompts [B, PROMPT_LENGTH] to [B, ROW_LENGTH]; greedily if `generator` is None."""
    cache = DynamicCache(config=model.config)
    rows, last = prompts, prompts
    while rows.shape[1] < ROW_LENGTH:
        outputs = model(input_ids=last, past_key_values=cache, logits_to_keep=1)
        logits = outputs.logits[:, -1].float()  # [B, V]
        if generator is None:
            last = logits.argmax(-1, keepdim=True)
        else:
            last = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        rows = torch.cat([rows, last], dim=1)
    return rows


def write_rows(
    model: LlamaForCausalLM, prompts: np.ndarray, generator: torch.Generator | None, name: str, batch: int
) -> np.ndarray:
    """Continue prompts [N, PROMPT_LENGTH] in batches; return rows [N, ROW_LENGTH] of uint16."""
    done, began = [], time.monotonic()
    for part in torch.from_numpy(prompts.astype(np.int64)).split(batch):
        done.append(continue_rows(model, part, generator).numpy().astype(np.uint16))
        tokens = sum(map(len, done)) * (ROW_LENGTH - PROMPT_LENGTH)
        rate = tokens / (time.monotonic() - began)
        print(f"{name}: {tokens} tokens from this process, {rate:.0f}/s", flush=True)
    return np.concatenate(done)


def write_samples(arguments: argparse.Namespace) -> None:
    """Generate this process's share of the rows; the first process merges the shares."""
    stream = np.load(arguments.work / "train.npy")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    # bfloat16 for speed: `teacher` computes the distributions for this text again.
    model = load_checkpoint("target", arguments.work).bfloat16()
    for name, count in (("sampled", arguments.rows), ("greedy", arguments.greedy_rows)):
        greedy = name == "greedy"
        prompts = training_prompts(stream, count, np.random.default_rng(int(greedy)))[rank::processes]
        generator = None if greedy else torch.Generator().manual_seed(rank)
        share = arguments.work / f"{name}.{rank}.npy"
        np.save(share, write_rows(model, prompts, generator, name, arguments.batch))
    distributed.barrier()
    for name in ("sampled", "greedy") if is_first() else ():
        shares = [arguments.work / f"{name}.{number}.npy" for number in range(processes)]
        np.save(arguments.work / f"{name}.npy", np.concatenate([np.load(path) for path in shares]))
        for path in shares:
            path.unlink()


def main() -> None:
    """Write sampled.npy and greedy.npy to --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024, help="rows sampled at temperature 1")
    parser.add_argument("--greedy-rows", type=int, default=384, help="rows from greedy decoding")
    parser.add_argument("--batch", type=int, default=64, help="batch size")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, one per core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with corpus and checkpoints")
    run(write_samples, parser.parse_args())


if __name__ == "__main__":
    main()
