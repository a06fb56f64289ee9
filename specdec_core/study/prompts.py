"""The prompts of a study: those that ship, a file or a list; and chats as a model reads them. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from specdec_core.errors import PromptError, reading
from specdec_core.shipped import BUILTIN_PROMPTS
from specdec_core.study.prompt_file import PromptText, read_prompt_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from specdec_core.study.config import PromptsConfig

__all__ = ["PromptText", "digest_of", "encode_prompts", "read_chat_template", "read_prompts", "read_template"]


def read_prompts(config: PromptsConfig, folder: Path) -> tuple[PromptText, ...]:
    """Return the prompts that a study asks for: at least one, none of them empty, no two with one id.

    Args:
        config: What the study says.
        folder: Where relative files are meant from.

    Raises:
        PromptError: A file cannot be read, or its lines are no prompts: with a line for each of the first
            problems, which begins with file and line. Also when only some prompts have a reference.
    """
    if config.texts is not None:
        name, found = "the list of prompts", _from_list(config.texts[: config.limit])
    else:
        path = folder / config.file.expanduser() if config.file else BUILTIN_PROMPTS[config.builtin or "heldout"]
        name, found = str(path), read_prompt_file(path, config.limit)
    if not found:
        raise PromptError(f"{name} holds no prompt; give at least one.")
    template = read_chat_template(config, folder)
    if template is not None and all(prompt.messages is None for prompt in found):
        raise PromptError(
            f"a chat template is given, and no prompt of {name} is a chat. Give prompts with `messages`, or leave "
            "`chat_template` out."
        )
    return tuple(found)


def read_chat_template(config: PromptsConfig, folder: Path) -> str | None:
    """Return the chat template that a study gives in the place of the tokenizer's own; None where it gives none.

    Args:
        config: What the study says.
        folder: Where a relative file is meant from.

    Raises:
        PromptError: The file cannot be read, or is empty.
    """
    return None if config.chat_template is None else read_template(folder / config.chat_template.expanduser())


def read_template(path: Path) -> str:
    """Return a chat template.

    Args:
        path: A file in the language of Jinja, as tokenizers have it.

    Raises:
        PromptError: It cannot be read, or is empty.
    """
    with reading(path, PromptError, "a Jinja template"):
        template = path.read_text(encoding="utf-8")
    if not template.strip():
        raise PromptError(f"{path}: this chat template is empty; write how messages become a text.")
    return template


def encode_prompts(
    prompts: Sequence[PromptText], tokenizer: Any, *, model: str, chat_template: str | None = None
) -> list[str | list[int]]:
    """Return prompts as a `Decoder` takes them: texts as they are, chats as token ids.

    A chat is written out by the template, with the opening of an answer behind the last message. The template
    writes the special tokens, and the tokenizer adds none to them.

    Args:
        prompts: What was read.
        tokenizer: That of the target; None where it has none.
        model: What messages should call the target.
        chat_template: A Jinja template in the place of the tokenizer's own.

    Raises:
        PromptError: There is no tokenizer or no template for a chat, or the template refuses a chat.
    """
    return [
        prompt.text if prompt.text is not None else _chat(prompt, tokenizer, model, chat_template)
        for prompt in prompts
    ]


def digest_of(prompts: Sequence[PromptText], chat_template: str | None = None) -> str:
    """Return a short text that differs where answers may: by the prompts and the template, not by references.

    Args:
        prompts: What was read.
        chat_template: The template that is used in the place of the tokenizer's own.
    """
    said = json.dumps([chat_template, *((prompt.text, prompt.messages) for prompt in prompts)], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _chat(prompt: PromptText, tokenizer: Any, model: str, template: str | None) -> list[int]:
    name = f"prompt {prompt.id!r}"
    if tokenizer is None:
        raise PromptError(f"{name} is a chat, but {model} has no tokenizer: put its files beside the model.")
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise PromptError(
            f"{name} is a chat, but the tokenizer of {model} has no chat template. Take an instruction-tuned "
            "checkpoint, whose tokenizer has one, or give a template: `chat_template: FILE` in `prompts`, "
            "--chat-template FILE on the command line."
        )
    whose = f"the chat template of {model}" if template is None else "the chat template that was given"
    try:
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in prompt.messages or ()],
            chat_template=template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    except Exception as error:  # a template is a program: it may raise anything
        line = getattr(error, "lineno", None)
        place = "" if line is None else f" (line {line} of the template)"
        raise PromptError(
            f"{name}: {whose} refuses it: {error}{place}. Change the messages to what the template takes, or give "
            "another template."
        ) from error
    if not ids:
        raise PromptError(f"{name}: {whose} makes no token of it; it must write the messages out.")
    return [int(token) for token in ids]


def _from_list(texts: Sequence[str]) -> list[PromptText]:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise PromptError(f"prompt {number} of {len(texts)} is empty; write a text or leave it out.")
    return [PromptText(str(number), text) for number, text in enumerate(texts, start=1)]
