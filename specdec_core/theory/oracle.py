"""The best that any choice of gamma could have done, computed after the fact from what was accepted.

A trace says how many draft tokens each step accepted whose drafts were all of the longest length K. It cuts the
text into blocks: some tokens that the drafter guessed, and one that it did not. Whatever gamma is chosen, step
by step, nobody gets past the end of a block within a step: the token there is not the drafter's, and has to be
the recovered token of the step. So blocks cost each by itself, and the cheapest way through a block of n + 1
tokens is to draft exactly the n, or to split it where several shorter steps take less time than a long one.

Where all K tokens of a step were accepted, nothing is known of the bonus token. It is taken for guessed, which
can only make the oracle cheaper: the block goes on in the next step.

What this bounds: with argmax, and a drafter whose guess depends on the tokens before it alone, a token is
guessed or is not, whoever asks, and the oracle takes no longer than any choice of gammas up to K over the same
tokens. With sampling this holds for the expectation over the random numbers: at each position, the drafter's
token is accepted with the beta of its prefix, whatever was chosen before, and the oracle is told all of those
outcomes. A drafter whose guess depends on where its step began (heads on hidden states; one that sees its own
rejected tokens) is outside of it.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.5: with T(k) = T(0), c = 0, no longest draft and betas that are independent and identically
    distributed, this is 1 / (1 - alpha) tokens a target call (`oracle_tokens`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specdec_core.theory.ranges import check_each, check_gamma


def oracle_seconds(accepted: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the least time in which the text of a trace could have been decoded.

    Args:
        accepted: Draft tokens accepted in each step of a run that always drafted K of them, each in 0 ... K.
        seconds: What a step takes whose draft has k tokens, k = 0, 1, ... K, in any unit.

    Returns:
        The time, in the same unit; 0 for an empty trace.

    Raises:
        ValueError: When a time is not above 0, or a count is not in 0 ... K.
    """
    blocks = _blocks(accepted, seconds)
    # Drafting in vain behind what is accepted may be cheaper where the times that were measured fall.
    cheapest = list(seconds)
    for k in range(len(seconds) - 2, -1, -1):
        cheapest[k] = min(cheapest[k], cheapest[k + 1])
    best = [0.0]
    for tokens in range(1, max(blocks, default=0) + 1):
        best.append(min(cheapest[n - 1] + best[tokens - n] for n in range(1, min(tokens, len(seconds)) + 1)))
    return sum(count * best[tokens] for tokens, count in blocks.items())


def fixed_seconds(accepted: Sequence[int], gamma: int, seconds: Sequence[float]) -> float:
    """Return the time in which a fixed gamma decodes the text of a trace; the bonus token is taken for guessed.

    Args:
        accepted: As in `oracle_seconds`.
        gamma: Tokens drafted in a step, in 0 ... K.
        seconds: As in `oracle_seconds`.

    Raises:
        ValueError: When an argument is out of range.
    """
    check_gamma(gamma, len(seconds) - 1)
    # The step that ends a block drafts gamma tokens like any other; some of them are refused.
    blocks = _blocks(accepted, seconds)
    return seconds[gamma] * sum(count * -(-tokens // (gamma + 1)) for tokens, count in blocks.items())


def _blocks(accepted: Sequence[int], seconds: Sequence[float]) -> Counter[int]:
    """Return how many blocks there are of each number of tokens, the one that was not guessed included."""
    check_each("seconds", seconds, above=True)
    most = len(seconds) - 1
    blocks: Counter[int] = Counter()
    tokens = 0
    for count in accepted:
        if not 0 <= count <= most:
            raise ValueError(
                f"accepted must be whole numbers from 0 to {most}, the longest draft that seconds speak of; "
                f"given {count!r}"
            )
        tokens += count + 1
        if count < most:
            blocks[tokens] += 1
            tokens = 0
    if tokens:
        blocks[tokens] += 1
    return blocks
