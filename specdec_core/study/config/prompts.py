"""Prompts of a study, with chat templates applied. Importing this imports no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specdec_core.interface.errors import ModelError, PromptError, reading
from specdec_core.interface.files import input_path, open_text
from specdec_core.models.chat_template import render_chat
from specdec_core.registry import shipped_file
from specdec_core.study.config.benchmarks import check_placeholders
from specdec_core.study.config.messages import plain_messages
from specdec_core.study.config.prompt_file import PromptText, read_rows
from specdec_core.study.config.prompt_rows import dataset_rows, file_rows, shuffled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specdec_core.study.config.schema import PromptsConfig

_MAX_TEMPLATE = 1_000_000
"""The most bytes of a chat template."""

__all__ = [
    "PromptText",
    "as_chat",
    "encode_prompts",
    "fingerprint_prompts",
    "read_chat_template",
    "read_prompts",
    "read_template",
]


def read_prompts(config: PromptsConfig, folder: Path) -> tuple[PromptText, ...]:
    """Return the prompts of a study: at least one, none of them empty, with unique ids.

    Args:
        config: Settings of the prompts.
        folder: Base for relative paths.

    Raises:
        PromptError: If a file cannot be read or has invalid lines, with one line for each of the first problems,
            beginning with file and line; or if only some prompts have a reference.
    """
    config = config.spelled_out(folder)
    name, found = _read(config, folder)
    check_placeholders(name, ((one.id, one.text or "") for one in found))
    if not found:
        raise PromptError(f"{name} has no prompts; add at least one.")
    if config.chat:
        found = [as_chat(prompt, config.system) for prompt in found]
    template = read_chat_template(config, folder)
    if template is not None and all(prompt.messages is None for prompt in found):
        raise PromptError(
            f"`chat_template` is set, but no prompt of {name} is a chat. Use prompts with `messages`, or remove "
            "`chat_template`."
        )
    return tuple(found)


def read_chat_template(config: PromptsConfig, folder: Path) -> str | None:
    """Return the chat template that a study sets, or None.

    Args:
        config: Settings of the prompts.
        folder: Base for relative paths.

    Raises:
        PromptError: If the file cannot be read or is empty.
    """
    if config.chat_template is None:
        return None
    return read_template(input_path(config.chat_template, folder, PromptError))


def read_template(path: Path) -> str:
    """Read a chat template.

    Args:
        path: A Jinja template in the format of transformers' tokenizers.

    Raises:
        PromptError: If it cannot be read or is empty.
    """
    with reading(path, PromptError, "a Jinja template"), open_text(path, _MAX_TEMPLATE) as file:
        template = file.read()
    if not template.strip():
        raise PromptError(f"{path}: this chat template is empty; it must render messages as text.")
    return template


def encode_prompts(
    prompts: Sequence[PromptText], tokenizer: Any, *, model: str, chat_template: str | None = None
) -> list[str | list[int]]:
    """Return prompts in the form that a `Decoder` takes: texts and token ids unchanged, chats as token ids.

    The template renders a chat with a generation prompt after the last message. It also writes the special tokens;
    the tokenizer adds none.

    Args:
        prompts: The prompts as read.
        tokenizer: The target's tokenizer, or None.
        model: Name of the target in messages.
        chat_template: A Jinja template that replaces the tokenizer's own.

    Raises:
        PromptError: If a chat has no tokenizer or no template, or the template refuses it.
    """
    return [_encoded(prompt, tokenizer, model, chat_template) for prompt in prompts]


def _encoded(prompt: PromptText, tokenizer: Any, model: str, chat_template: str | None) -> str | list[int]:
    if prompt.tokens is not None:
        return list(prompt.tokens)
    if prompt.text is not None:
        return prompt.text
    name = f"prompt {prompt.id!r}"
    try:
        messages = plain_messages(prompt.messages or ())
    except PromptError as error:
        raise PromptError(f"{name}: {error}") from error
    return render_chat(messages, tokenizer, name=name, model=model, template=chat_template)


def as_chat(prompt: PromptText, system: str | None = None) -> PromptText:
    """Return a text as a user message; a chat is returned unchanged.

    Args:
        prompt: A text or a chat.
        system: The system message before it.

    Raises:
        PromptError: There is a system message, and the prompt is already a chat; or it is token ids.
    """
    if prompt.tokens is not None:
        raise PromptError(f"prompt {prompt.id!r} is token ids; a message of a chat is a text. Leave `chat` out.")
    if prompt.text is None:
        if system is not None:
            raise PromptError(
                f"prompt {prompt.id!r} is already a chat; add the system message to its `messages`, and leave "
                "`system` out."
            )
        return prompt
    before = [] if system is None else [{"role": "system", "content": system}]
    return replace(prompt, text=None, messages=(*before, {"role": "user", "content": prompt.text}))


def fingerprint_prompts(prompts: Sequence[PromptText], chat_template: str | None = None) -> str:
    """Return a short hash of the prompts and the chat template, which decide the outputs; references do not.

    Args:
        prompts: The prompts as read.
        chat_template: The template that replaces the tokenizer's own.
    """
    text = json.dumps([chat_template, *map(_content, prompts)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def in_both(prompts: Sequence[PromptText], others: Sequence[PromptText]) -> list[str]:
    """Return the ids of the prompts that are among the others, too, whatever their ids are there."""
    known = {json.dumps(_content(prompt), sort_keys=True) for prompt in others}
    return [prompt.id for prompt in prompts if json.dumps(_content(prompt), sort_keys=True) in known]


def _content(prompt: PromptText) -> tuple[Any, ...]:
    return (prompt.text, prompt.messages) if prompt.tokens is None else (prompt.tokens,)


def _read(config: PromptsConfig, folder: Path) -> tuple[str, list[PromptText]]:
    """Return the name of the source, for messages, and its prompts."""
    if config.texts is not None:
        return "the list of prompts", _from_list(config.texts, config)
    if config.tokens is not None:
        order = shuffled(len(config.tokens), config.shuffle)[: config.limit]
        return "the list of tokens", [PromptText(str(n + 1), None, tokens=config.tokens[n]) for n in order]
    if config.dataset is not None:
        rows = dataset_rows(config, folder)
        return config.dataset, read_rows(rows, config.chosen_columns(), config.limit)
    path = _file(f"builtin:{config.builtin}" if config.file is None else config.file, folder)
    return str(path), read_rows(file_rows(path, config.shuffle), config.chosen_columns(), config.limit)


def _file(given: str | Path, folder: Path) -> Path:
    """Return the file that a `file` key refers to."""
    try:
        shipped = shipped_file(given, "prompts", "*.jsonl", folder)
    except ModelError as error:
        raise PromptError(str(error)) from error
    return input_path(given, folder, PromptError) if shipped is None else shipped


def _from_list(texts: Sequence[str], config: PromptsConfig) -> list[PromptText]:
    order = shuffled(len(texts), config.shuffle)[: config.limit]
    for index in order:
        if not texts[index].strip():
            raise PromptError(f"prompt {index + 1} of {len(texts)} is empty; write a text or remove it.")
    return [PromptText(str(index + 1), texts[index]) for index in order]
