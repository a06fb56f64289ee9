"""Let the target write: continuations of training prompts, sampled at temperature 1 and by argmax.

The drafter is used on text the target has written, so it is also trained on such text. A row is the
prompt and its continuation; the end-of-text token does not stop it, a new document begins instead.

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
ROW_LENGTH = 321  # a prompt, its continuation, and one token more to predict


def load_checkpoint(role: str, work: Path) -> LlamaForCausalLM:
    """Return a trained model from its checkpoint, ready for inference."""
    return load_weights(new_model(role, seed=0), work / f"{role}.pt")


def training_prompts(stream: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return windows [N, PROMPT_LENGTH] of the training text, to continue."""
    starts = generator.integers(len(stream) - PROMPT_LENGTH, size=count)
    return stream[starts[:, None] + np.arange(PROMPT_LENGTH)]


@torch.inference_mode()
def continue_rows(
    model: LlamaForCausalLM, prompts: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """Continue prompts [B, PROMPT_LENGTH] to [B, ROW_LENGTH]; by argmax without a generator."""
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
        print(f"{name}: {tokens} tokens written by this process, {rate:.0f}/s", flush=True)
    return np.concatenate(done)


def write_samples(arguments: argparse.Namespace) -> None:
    """Write this process's share of the rows; the first process puts the shares together."""
    stream = np.load(arguments.work / "train.npy")
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    # Half the bits for speed: this text is only practice material, the teacher is asked anew.
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
    """Write sampled.npy and greedy.npy below --work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024, help="rows sampled at temperature 1")
    parser.add_argument("--greedy-rows", type=int, default=384, help="rows written by argmax")
    parser.add_argument("--batch", type=int, default=64, help="rows generated together")
    parser.add_argument("--processes", type=int, default=2, help="one for each core")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with corpus, checkpoints")
    run(write_samples, parser.parse_args())


if __name__ == "__main__":
    main()
