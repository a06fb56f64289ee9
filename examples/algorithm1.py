"""Speculative decoding (arXiv 2211.17192, Algorithm 1) in plain torch: what specdec does, without its caches.

    python examples/algorithm1.py "import os"

p is the target's distribution, q the drafter's. The random numbers are those of specdec, so that the tokens are
those of `Decoder(target, drafter, gamma=4, temperature=1.0).generate(prompt, seeds=[seed])`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


@torch.inference_mode()
def generate(
    target: Any,
    drafter: Any,
    prompt: Sequence[int],
    *,
    gamma: int = 4,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    eos_ids: Sequence[int] = (),
    seed: int = 0,
) -> tuple[list[int], int]:
    """Decode a prompt with a draft model.

    Args:
        target: A decoder-only model of transformers, M_p in the paper.
        drafter: One with the same vocabulary, M_q.
        prompt: Token ids.
        gamma: Number of draft tokens in a step.
        temperature: 0 is greedy.
        max_new_tokens: The most tokens to generate.
        eos_ids: Tokens that end the text.
        seed: Seed of the random numbers.

    Returns:
        The generated tokens, and the number of the target's forward passes.
    """
    random = np.random.Generator(np.random.PCG64(seed)).random
    tokens, limit, passes = list(prompt), len(prompt) + max_new_tokens, 0
    while len(tokens) < limit:
        # One token is left for the one that follows the draft.
        new = step(target, drafter, tokens, min(gamma, limit - len(tokens) - 1), temperature, random)
        passes += 1
        for token in new:
            tokens.append(token)
            if token in eos_ids:
                return tokens[len(prompt) :], passes
    return tokens[len(prompt) :], passes


# --8<-- [start:step]
def step(target: Any, drafter: Any, prefix: list[int], gamma: int, temperature: float, random: Any) -> list[int]:
    """Return the tokens of one step: the accepted draft tokens, and one that follows them."""
    # Sample gamma draft tokens x_1, ..., x_gamma from M_q autoregressively.
    numbers = random(gamma)
    draft: list[int] = []
    q: list[Tensor] = []
    for number in numbers:
        logits = drafter(torch.tensor([prefix + draft])).logits[0, -1]
        q.append(standardized(logits, temperature))
        draft.append(sample(q[-1], number))

    # Run M_p once: its distribution after the prefix, and after each draft token.
    logits = target(torch.tensor([prefix + draft])).logits[0, len(prefix) - 1 :]
    p = [standardized(row, temperature) for row in logits]  # gamma + 1 rows

    # Determine n, the number of accepted draft tokens.
    r = random(gamma + 1)
    n = 0
    while n < gamma and r[n] * float(q[n][draft[n]]) < float(p[n][draft[n]]):
        n += 1

    # Adjust the distribution from M_p if a token was rejected, and sample one token from it.
    weights = torch.clamp(p[n] - q[n], min=0) if n < gamma else p[n]
    return [*draft[:n], sample(weights, r[gamma])]


# --8<-- [end:step]


def standardized(logits: Tensor, temperature: float) -> Tensor:
    """Return a distribution `[V]` from logits (section 2.2); greedy decoding is a one-hot one."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).float()
    return torch.softmax(logits.float() / temperature, dim=-1)


def sample(weights: Tensor, number: float) -> int:
    """Draw an index with probability proportional to its weight, by inversion of a uniform number in [0, 1)."""
    sums = weights.double().cumsum(dim=0)
    return int(torch.searchsorted(sums, number * sums[-1], right=True))


def main() -> None:
    """Decode a prompt with the models that ship."""
    from specdec_core import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="import os")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    target, drafter = load_model("builtin:target", packed=False), load_model("builtin:drafter", packed=False)
    prompt = target.tokenizer(given.pop("prompt")).input_ids
    tokens, passes = generate(target.model, drafter.model, prompt, eos_ids=target.eos_ids, **given)
    print(target.tokenizer.decode(tokens))
    print(f"{len(tokens)} tokens in {passes} target forward passes")


if __name__ == "__main__":
    main()
