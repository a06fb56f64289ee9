"""Prompts of a study, with chat templates applied. Importing this imports no torch."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from specdec_core.interface.errors import ModelError, PromptError, reading
from specdec_core.interface.files import input_path
from specdec_core.models.chat_template import Turn, render_chat
from specdec_core.registry.shipped import shipped_file
from specdec_core.study.config.benchmarks import benchmark_rows, check_placeholders
from specdec_core.study.config.prompt_file import PromptText, conversations, read_rows, turns_of
from specdec_core.study.config.prompt_rows import Row, dataset_rows, file_rows, shuffled
from specdec_core.study.config.schema import PromptsConfig

ReadyPrompt: TypeAlias = str | list[int] | Turn
"""A text, token ids, or a turn of a conversation."""


def read_prompts(config: PromptsConfig, folder: Path) -> tuple[PromptText, ...]:
    """Return the prompts of a study: at least one, none of them empty, with unique ids.

    A conversation is as many prompts as it has turns, one after the other.

    Args:
        config: Settings of the prompts.
        folder: Base for relative paths.

    Raises:
        PromptError: If a file cannot be read or has invalid lines, with one line for each of the first problems,
            beginning with file and line; or if only some prompts have a reference.
    """
    benchmark, config = config.benchmark, config.spelled_out(folder)
    name, found = _read(config, folder, benchmark)
    check_placeholders(name, ((one.id, text) for one in found for text in _texts(one)))
    if not found:
        raise PromptError(f"{name} has no prompts; add at least one.")
    if config.chat:
        found = [as_chat(prompt, config.system) for prompt in found]
    found = [turn for prompt in found for turn in _turns(prompt, first=config.turns == "first")]
    template = read_chat_template(config, folder)
    if template is not None and all(prompt.messages is None for prompt in found):
        raise PromptError(
            f"`chat_template` is set, but no prompt of {name} is a chat. Use prompts with `messages`, or remove "
            "`chat_template`."
        )
    return tuple(found)


def _texts(prompt: PromptText) -> Iterator[str]:
    yield prompt.text or ""
    yield from (str(message.get("content")) for message in prompt.messages or ())


def _turns(prompt: PromptText, *, first: bool) -> list[PromptText]:
    """Return the turns of a prompt, or only the first."""
    if prompt.messages is None:
        return [prompt]
    said = turns_of(prompt.messages)[: 1 if first else None]
    if prompt.references and len(said) > 1:
        raise PromptError(
            f"prompt {prompt.id!r} has {len(said)} turns and a reference, which says nothing of the turn it "
            "belongs to. Remove the reference, or set `turns: first`."
        )
    return [
        replace(prompt, id=prompt.id if turn == 1 else f"{prompt.id} turn {turn}", messages=messages, turn=turn)
        for turn, messages in enumerate(said, start=1)
    ]


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
    with reading(path, PromptError, "a Jinja template"), path.open(encoding="utf-8-sig") as file:
        template = file.read()
    if not template.strip():
        raise PromptError(f"{path}: this chat template is empty; it must render messages as text.")
    return template


def encode_prompts(
    prompts: Sequence[PromptText], tokenizer: Any, *, model: str, chat_template: str | None = None
) -> list[ReadyPrompt]:
    """Return prompts in the form that a decoder takes: texts and token ids unchanged, chats as token ids.

    The template renders a chat with a generation prompt after the last message. It also writes the special tokens;
    the tokenizer adds none. A conversation of several turns is rendered while it is decoded.

    Args:
        prompts: The prompts as read.
        tokenizer: The target's tokenizer, or None.
        model: Name of the target in messages.
        chat_template: A Jinja template that replaces the tokenizer's own.

    Raises:
        PromptError: If a chat has no tokenizer or no template, or the template raises an error.
    """
    ready: list[ReadyPrompt] = []
    for turns in conversations(prompts):
        if len(turns) == 1:
            one = prompts[turns[0]]
            ready.append(render_prompt(one, tokenizer, model=model, chat_template=chat_template))
        else:
            each = [prompts[turn] for turn in turns]
            ready += [Turn(one.messages or (), f"prompt {one.id!r}", chat_template) for one in each]
    return ready


def render_prompt(
    prompt: PromptText, tokenizer: Any, *, model: str, chat_template: str | None = None
) -> str | list[int]:
    """Return a prompt that no turn precedes as `encode_prompts` does, whatever follows it."""
    if prompt.tokens is not None:
        return list(prompt.tokens)
    if prompt.text is not None:
        return prompt.text
    name = f"prompt {prompt.id!r}"
    return render_chat(prompt.messages or (), tokenizer, name=name, model=model, template=chat_template)


def as_chat(prompt: PromptText, system: str | None = None) -> PromptText:
    """Return a text as a user message; a chat is returned unchanged.

    Args:
        prompt: A text or a chat.
        system: The system message before it.

    Raises:
        PromptError: There is a system message, and the chat has one; or the prompt is token ids.
    """
    if prompt.tokens is not None:
        raise PromptError(f"prompt {prompt.id!r} is token ids; a message of a chat is a text. Leave `chat` out.")
    said = prompt.messages or ({"role": "user", "content": prompt.text},)
    if system is not None:
        if said[0].get("role") == "system":
            raise PromptError(
                f"prompt {prompt.id!r} begins with a system message; leave `system` out, or remove the message."
            )
        said = ({"role": "system", "content": system}, *said)
    return replace(prompt, text=None, messages=said)


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
    content = (prompt.text, prompt.messages) if prompt.tokens is None else (prompt.tokens,)
    return content if prompt.turn == 1 else (*content, prompt.turn)


def _read(config: PromptsConfig, folder: Path, benchmark: str | None) -> tuple[str, list[PromptText]]:
    """Return the name of the source, for messages, and its prompts."""
    if config.texts is not None:
        order = shuffled(len(config.texts), config.shuffle)[: config.limit]
        return "the list of prompts", [PromptText(str(n + 1), config.texts[n]) for n in order]
    if config.tokens is not None:
        order = shuffled(len(config.tokens), config.shuffle)[: config.limit]
        return "the list of tokens", [PromptText(str(n + 1), None, tokens=config.tokens[n]) for n in order]
    rows: Iterable[Row]
    if config.dataset is not None:
        name, rows = config.dataset, dataset_rows(config, folder)
    else:
        path = _file(f"builtin:{config.builtin}" if config.file is None else config.file, folder)
        name, rows = str(path), benchmark_rows(benchmark, file_rows(path))
        if config.shuffle is not None:
            every = list(rows)
            rows = [every[index] for index in shuffled(len(every), config.shuffle)]
    return name, read_rows(rows, config.chosen_columns(), config.limit)


def _file(given: str | Path, folder: Path) -> Path:
    """Return the file that a `file` key refers to."""
    try:
        shipped = shipped_file(given, "prompts", "*.jsonl", folder)
    except ModelError as error:
        raise PromptError(str(error)) from error
    return input_path(given, folder, PromptError) if shipped is None else shipped
