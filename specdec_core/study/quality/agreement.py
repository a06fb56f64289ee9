"""Whether two runs wrote the same tokens. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence


def agreement(outputs: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> float:
    """Return the share of prompts whose tokens are those of plain decoding, each and every one.

    At temperature 0 with lenience 1 it is 1.0, or something is wrong (Leviathan et al. 2023, appendix A.1, arXiv
    2211.17192). Sampled runs agree where chance has it; they need not.

    Args:
        outputs: Token ids that the run wrote after each prompt, without the prompt.
        plain: Those of plain decoding, of the same prompts in the same order.

    Raises:
        ValueError: There are none, or not as many of one as of the other.
    """
    check_pairs(len(outputs), len(plain))
    return sum(list(mine) == list(theirs) for mine, theirs in zip(outputs, plain, strict=True)) / len(plain)


def first_difference(outputs: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Return which prompt and which of its tokens is the first that differs, both from 0; None if none does.

    Where one output is the beginning of the other, it is the token that the shorter one lacks.

    Args:
        outputs: As for `agreement`.
        plain: As for `agreement`.

    Raises:
        ValueError: As for `agreement`.
    """
    check_pairs(len(outputs), len(plain))
    for index, (mine, theirs) in enumerate(zip(outputs, plain, strict=True)):
        if list(mine) != list(theirs):
            pairs = enumerate(zip(mine, theirs, strict=False))
            return index, next((place for place, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
    return None


def check_pairs(outputs: int, others: int) -> None:
    """Refuse two lists that do not go together.

    Raises:
        ValueError: They are empty, or not of one length.
    """
    if outputs != others or not outputs:
        raise ValueError(
            f"{outputs} outputs and {others} to go with them: give one for each prompt, of at least one prompt"
        )
