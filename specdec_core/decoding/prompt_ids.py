"""Turning prompts into token ids that the target accepts."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from transformers.utils import ModelOutput

from specdec_core.interface.errors import ArgumentError, PromptError
from specdec_core.models import LoadedModel
from specdec_core.models.run.encoder import Encoded, EncoderOutput

Prompt: TypeAlias = str | Sequence[int] | Tensor
"""Text (needs a tokenizer) or token ids, also as a tensor `[T]`. For encoder-decoder targets it is the source."""

_MAX_PROBLEMS = 5


def as_prompts(given: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of a batch: those that were given, or the single one.

    Args:
        given: A text, token ids, or several of either; tensors `[T]` and `[B, T]` of ids as well.

    Raises:
        ArgumentError: It is neither a prompt nor several.
        PromptError: It holds no prompt.
    """
    plain = _plain(given)
    if isinstance(plain, str):
        return [plain]
    if not _is_sequence(plain):
        raise ArgumentError(_not_a_prompt("the prompt", given))
    if not plain:
        raise PromptError("no prompt was given.")
    if all(isinstance(entry, Integral) for entry in plain):
        return [plain]
    prompts = [_plain(entry) for entry in plain]
    for index, prompt in enumerate(prompts):
        ids = _is_sequence(prompt) and all(isinstance(token, Integral) for token in prompt)
        if not isinstance(prompt, str) and not ids:
            raise ArgumentError(_not_a_prompt(f"prompt {index}", prompt))
    return prompts


def _plain(given: Any) -> Any:
    return given.tolist() if isinstance(given, Tensor | np.ndarray) else given


def _is_sequence(value: object) -> bool:
    # Bytes are a sequence of numbers, but nobody means token ids by them.
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview)


def _not_a_prompt(name: str, given: Any) -> str:
    text = repr(given)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return (
        f"{name} is {text} of type {type(given).__name__}; pass a text, a list or tensor of token ids, or a list "
        "of either for a batch. A tokenizer's output has the ids under `input_ids`; `apply_chat_template` of the "
        "tokenizer turns a chat into a prompt."
    )


def encode_prompt(target: LoadedModel, prompt: Prompt, name: str, *, encoder_has_run: bool = False) -> list[int]:
    """Return a prompt as token ids, at least one and at most as many as the target takes.

    Args:
        target: The model that continues the prompt or, with an encoder, reads it.
        prompt: The prompt.
        name: Its name in messages, such as its number.
        encoder_has_run: Whether the target's encoder has run, so that the decoder begins with the prompt.

    Raises:
        PromptError: It is empty, too long, outside the vocabulary, text without a tokenizer, or for an encoder
            that reads no ids.
    """
    if target.encoder_decoder and not target.reads_ids and not encoder_has_run:
        raise PromptError(
            f"prompt {name} is text or token ids, and the encoder of {target.name} reads "
            f"{target.model.main_input_name}. Run the encoder, and pass generate(..., encoder_outputs=...) with "
            "what the decoder begins with as the prompts; or call the model's own generate with generate_with."
        )
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
    _check_length(target, len(ids), name, source=target.encoder_decoder and not encoder_has_run)
    return ids


def read_encoder_outputs(target: LoadedModel, given: Any, count: int) -> Encoded:
    """Return what a target's encoder gave for some sequences.

    Args:
        target: The target.
        given: What its encoder returned, or states `[B, S, D]`.
        count: B.

    Raises:
        ArgumentError: The target has no encoder, or these are no states for B sequences.
    """
    states = given[0] if isinstance(given, tuple | ModelOutput) and given else given
    if not target.encoder_decoder:
        raise ArgumentError(f"encoder_outputs was given, but {target.name} has no encoder; leave it out.")
    if not isinstance(states, Tensor) or states.ndim != 3 or len(states) != count:
        shape = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
        raise ArgumentError(
            f"encoder_outputs has {shape} where states [{count}, S, D] belong, one for each prompt. Pass what "
            "`target.model.get_encoder()` returned for them."
        )
    mask = getattr(given, "attention_mask", None)
    states, mask = (part if part is None else part.to(target.device) for part in (states, mask))
    return Encoded.of(EncoderOutput(states, attention_mask=mask), None, target.model.get_encoder(), {})


def check_prompts(target: LoadedModel, prompts: Sequence[Prompt], names: Sequence[str]) -> None:
    """Reject prompts that a target cannot take, before any is decoded.

    Args:
        target: The model that will decode them.
        prompts: The prompts.
        names: Their names in messages, one each.

    Raises:
        PromptError: `encode_prompt` rejects some; one line for each of the first.
    """
    problems = []
    for prompt, name in zip(prompts, names, strict=True):
        try:
            encode_prompt(target, prompt, name)
        except PromptError as error:
            problems.append(str(error))
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"{len(problems) - _MAX_PROBLEMS} more of {len(prompts)} prompts are invalid."]
    if problems:
        raise PromptError("\n".join(problems))


def check_batch(target: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
    """Reject a batch on both sides of a target's rotary switch, since a forward pass has one set of frequencies.

    Args:
        target: The model that will decode them.
        prompts: Their token ids.

    Raises:
        PromptError: Some prompts are longer than the switch and others are not.
    """
    long = [target.begins_long(len(prompt)) for prompt in prompts]
    if not target.encoder_decoder and any(long) and not all(long):
        raise PromptError(
            f"prompt {long.index(True)} has more than {target.family.rotary_switch} tokens and prompt "
            f"{long.index(False)} has not. {target.name} has other rotary frequencies from there on, for all rows "
            "of a batch: decode them in two batches."
        )


def leaves_room(target: LoadedModel, length: int) -> bool:
    """Return whether a decoder-only target can answer a prompt of some tokens with at least one."""
    longest = target.max_length(length)
    return longest is None or length < longest


def _check_length(target: LoadedModel, length: int, name: str, *, source: bool) -> None:
    if source:
        limit = target.family.max_source
        if limit is not None and length > limit:
            raise PromptError(
                f"the source of prompt {name} has {length} tokens; the encoder of {target.name} takes "
                f"{limit}. Shorten the source."
            )
    elif not leaves_room(target, length):
        raise PromptError(
            f"prompt {name} has {length} tokens; {target.name} takes {target.max_length(length)}, and at least "
            "one must be left for the answer. Shorten the prompt."
        )
