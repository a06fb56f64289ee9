"""Reading prompts: those that ship, a JSONL file, or a list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_core.errors import PromptError, reading
from specdec_core.shipped import PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdec_core.study.config import PromptsConfig


@dataclass(frozen=True)
class PromptText:
    """A prompt and what results call it."""

    id: str
    text: str


def read_prompts(config: PromptsConfig, folder: Path) -> tuple[PromptText, ...]:
    """Return the prompts that a study asks for, at least one and none of them empty.

    Args:
        config: What the study says.
        folder: Where a relative file is meant from.

    Raises:
        PromptError: When a file cannot be read or a prompt is missing or empty; with line or number.
    """
    if config.texts is not None:
        found = _from_list(config.texts)
    elif config.file is not None:
        found = _from_jsonl(folder / config.file.expanduser())
    else:
        found = _from_jsonl(PROMPTS)
    prompts = tuple(islice(found, config.limit))
    if not prompts:
        raise PromptError(f"{config.file or 'the list of prompts'} holds no prompt; give at least one.")
    return prompts


def _from_list(texts: Sequence[str]) -> Iterator[PromptText]:
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise PromptError(f"prompt {number} of {len(texts)} is empty; write a text or leave it out.")
        yield PromptText(str(number), text)


def _from_jsonl(path: Path) -> Iterator[PromptText]:
    with reading(path, PromptError, "JSON, one object a line"), path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _from_line(line, number, f"{path}:{number}")


def _from_line(line: str, number: int, where: str) -> PromptText:
    try:
        entry: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(
            f"{where}:{error.colno}: this is no JSON: {error.msg}; expected one object a line."
        ) from error
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        said = f"keys {', '.join(entry) or 'none'}" if isinstance(entry, dict) else type(entry).__name__
        raise PromptError(f'{where}: expected an object with a text under "prompt"; this has: {said}.')
    if not entry["prompt"].strip():
        raise PromptError(f"{where}: prompt {number} is empty; write a text or leave the line out.")
    return PromptText(str(entry.get("id", number)), entry["prompt"])
