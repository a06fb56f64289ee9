"""The shortest time that any choice of gamma could have reached, computed afterwards from accepted tokens.

A trace lists how many draft tokens were accepted in each step of a run that always drafted K. It cuts the text
into blocks: tokens that the drafter predicted, followed by one that it did not. No choice of gamma can get past
the end of a block within a step, as the token there must be the recovered token of its step. So blocks are
independent, and the cheapest way through a block of n + 1 tokens is to draft exactly n, or to split the block if
several shorter steps take less time than a long one.

If all K tokens of a step were accepted, nothing is known about the bonus token. It counts as predicted, which can
only make the oracle cheaper: the block continues in the next step.

Validity: with greedy decoding, and a drafter whose proposal depends only on the preceding tokens, the oracle takes
no longer than any choice of gammas up to K over the same tokens. With sampling this holds in expectation: at each
position the draft token is accepted with the beta of its prefix, whatever was chosen before, and the oracle knows
all outcomes. It does not hold for a drafter whose proposal depends on where its step began, such as heads on
hidden states, or a drafter that sees its own rejected tokens.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    section 3.5: with T(k) = T(0), c = 0, unlimited drafts and i.i.d. betas, this gives 1 / (1 - alpha) tokens per
    target call (`oracle_tokens`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specdec_core.theory.ranges import check_each, check_gamma


def oracle_seconds(accepted: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the shortest time in which the text of a trace could have been decoded.

    Args:
        accepted: Draft tokens accepted in each step of a run that always drafted K of them, each in 0 ... K.
        seconds: Time of a step whose draft has k tokens, k = 0, 1, ... K, in any unit.

    Returns:
        The time, in the same unit; 0 for an empty trace.

    Raises:
        ValueError: If a time is not above 0, or a count is not in 0 ... K.
    """
    blocks = _blocks(accepted, seconds)
    # Drafting more than is accepted may be cheaper if measured times decrease.
    cheapest = list(seconds)
    for k in range(len(seconds) - 2, -1, -1):
        cheapest[k] = min(cheapest[k], cheapest[k + 1])
    best = [0.0]
    for tokens in range(1, max(blocks, default=0) + 1):
        best.append(min(cheapest[n - 1] + best[tokens - n] for n in range(1, min(tokens, len(seconds)) + 1)))
    return sum(count * best[tokens] for tokens, count in blocks.items())


def fixed_seconds(accepted: Sequence[int], gamma: int, seconds: Sequence[float]) -> float:
    """Return the time in which a fixed gamma decodes the text of a trace; a bonus token counts as predicted.

    Args:
        accepted: As in `oracle_seconds`.
        gamma: Tokens drafted per step, in 0 ... K.
        seconds: As in `oracle_seconds`.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_gamma(gamma, len(seconds) - 1)
    # The step that ends a block drafts gamma tokens like any other; some of them are rejected.
    blocks = _blocks(accepted, seconds)
    return seconds[gamma] * sum(count * -(-tokens // (gamma + 1)) for tokens, count in blocks.items())


def _blocks(accepted: Sequence[int], seconds: Sequence[float]) -> Counter[int]:
    """Return how many blocks have each number of tokens, including the one that was not predicted."""
    check_each("seconds", seconds, above=True)
    max_gamma = len(seconds) - 1
    blocks: Counter[int] = Counter()
    tokens = 0
    for count in accepted:
        if not 0 <= count <= max_gamma:
            raise ValueError(
                f"accepted must be whole numbers from 0 to {max_gamma}, the longest draft in seconds; "
                f"given {count!r}"
            )
        tokens += count + 1
        if count < max_gamma:
            blocks[tokens] += 1
            tokens = 0
    if tokens:
        blocks[tokens] += 1
    return blocks
