"""A prompt as token ids that a target takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from specdec_core.errors import PromptError
from specdec_core.models import LoadedModel

Prompt: TypeAlias = str | Sequence[int]
"""Text (needs a tokenizer) or token ids. For encoder-decoder targets it is the source."""

_MOST_PROBLEMS = 5


def encode_prompt(target: LoadedModel, prompt: Prompt, name: str) -> list[int]:
    """Return a prompt as token ids, at least one and not more than the target takes.

    Args:
        target: The model that shall go on from it or, with an encoder, read it.
        prompt: The prompt.
        name: What messages should call it, such as its number.

    Raises:
        PromptError: It is empty, too long, not of this vocabulary, or a text where there is no tokenizer.
    """
    if isinstance(prompt, str):
        if target.tokenizer is None:
            raise PromptError(
                f"prompt {name} is text, but {target.name} has no tokenizer: give token ids, or put the "
                "tokenizer's files beside the model."
            )
        ids = [int(token) for token in target.tokenizer(prompt)["input_ids"]]
    else:
        ids = [int(token) for token in prompt]
    if not ids:
        raise PromptError(f"prompt {name} is empty: give at least one token to continue from.")
    last = target.vocab_size - 1
    outside = [token for token in ids if not 0 <= token <= last]
    if outside:
        raise PromptError(f"prompt {name} holds token id {outside[0]}; {target.name} has 0 to {last}.")
    _check_length(target, len(ids), name)
    return ids


def check_prompts(target: LoadedModel, prompts: Sequence[Prompt], names: Sequence[str]) -> None:
    """Refuse prompts that a target cannot take, before any time is spent on the others.

    Args:
        target: The model that shall decode them.
        prompts: The prompts.
        names: What messages should call them, one each.

    Raises:
        PromptError: Some are refused by `encode_prompt`; a line for each of the first.
    """
    problems = []
    for prompt, name in zip(prompts, names, strict=True):
        try:
            encode_prompt(target, prompt, name)
        except PromptError as error:
            problems.append(str(error))
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [
            f"{len(problems) - _MOST_PROBLEMS} more of {len(prompts)} prompts are refused."
        ]
    if problems:
        raise PromptError("\n".join(problems))


def _check_length(target: LoadedModel, length: int, name: str) -> None:
    longest = target.max_positions
    if longest is None:
        return
    if target.encoder_decoder and length > longest:
        raise PromptError(
            f"the source of prompt {name} has {length} tokens; the encoder of {target.name} takes {longest}. "
            "Shorten the source."
        )
    if not target.encoder_decoder and length >= longest:
        raise PromptError(
            f"prompt {name} has {length} tokens; {target.name} takes {longest}, and one of them must be left for "
            "the answer. Shorten the prompt."
        )
