"""Import of texts that another program generated into a record; the target is not loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from specdec_core.interface import Progress
from specdec_core.interface.errors import ConfigError, shortened
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models import ModelOutline, bytes_of_characters, load_outline
from specdec_core.offline.record.format import (
    FinishReason,
    PartHeader,
    PromptColumns,
    Record,
    RecordedPrompts,
    RecordedText,
    RecordHeader,
)
from specdec_core.offline.record.log_lines import LineError, LoggedText, read_log
from specdec_core.offline.record.recorded_target import fingerprint_tokenizer, save_tokenizer
from specdec_core.offline.record.tasks import fingerprint_ids
from specdec_core.offline.record.writer import RecordWriter, check_folder
from specdec_core.study.config.prompt_columns import NO_VALUE
from specdec_core.study.config.prompts import PromptText, render_prompt
from specdec_core.study.run.folder import exclusive_lock
from specdec_core.study.run.provenance import library_versions

Logprobs: TypeAlias = Literal["raw", "processed"]
"""The kind of logged log-probabilities: those of the model's own distribution, or after the sampling settings."""
_SHARD = 256
"""Texts of a shard."""
_SPACE = "\u2581"
"""How SentencePiece writes a space."""
_MOST_SHOWN = 4
"""Ids that a message lists."""


@dataclass(frozen=True)
class ImportOptions:
    """The content of a log.

    Attributes:
        target: The model that generated the texts. Its config and tokenizer are read, its weights are not.
        sampling: The settings that it sampled with.
        max_new_tokens: The length limit; None takes the length of the longest text.
        stop: Strings that ended a text.
        ignore_eos: Whether texts went on after an end of sequence.
        logprobs: What the log-probabilities are.
        chat_template: Replaces the tokenizer's chat template, for prompts that are chats.
        folder: Base for a relative path of the target.
    """

    target: TargetConfig
    sampling: SamplingSettings
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: Logprobs = "raw"
    chat_template: str | None = None
    folder: Path = Path()


def import_record(
    source: Path,
    output: Path,
    progress: Progress,
    options: ImportOptions,
    *,
    fresh: bool = False,
) -> Record:
    """Write a record of texts that were logged elsewhere.

    Args:
        source: JSON lines: our own form, responses of the OpenAI API or of vLLM, or dumps of vLLM.
        output: Folder of the record.
        progress: Where progress is reported.
        options: What the log holds.
        fresh: Discard the record that is in the folder.

    Raises:
        ConfigError: A line cannot be used, the log-probabilities are not those that were sampled from, or the
            folder holds another record.
        ModelError: The config or the tokenizer of the target cannot be read.
    """
    _check_logprobs(options)
    check_folder(output)
    with exclusive_lock(output, "recording"):
        target = options.target
        progress.stage(f"reading the tokenizer of {target.model}")
        outline = load_outline(
            target.model, folder=options.folder, revision=target.revision, subfolder=target.subfolder
        )
        progress.stage(f"reading {source}")
        reader = _Reader(outline, options)
        texts = reader.read(source, progress)
        writer = RecordWriter(output, _header(source, texts, outline, options), fresh=fresh)
        save_tokenizer(output, target.model, outline.tokenizer)
        if columns := reader.columns():
            writer.add_columns(0, columns)
        for start in range(writer.done[0], len(texts), _SHARD):
            writer.append(0, texts[start : start + _SHARD])
        return writer.record()


def _check_logprobs(options: ImportOptions) -> None:
    """Reject log-probabilities of the model's own distribution where another one was sampled from."""
    sampling = options.sampling
    none = {"temperature": 1, "top_p": 1, "min_p": 0}
    changed = sampling.model_dump(exclude_defaults=True)
    changed = {name: value for name, value in changed.items() if value != none.get(name)}
    if options.logprobs == "processed" or sampling.greedy or not changed:
        return
    said = ", ".join(f"{name} {value:g}" for name, value in changed.items())
    raise ConfigError(
        f"these texts were sampled with {said}, and raw log-probabilities are those of the model before that: p "
        "of the distribution that was sampled from does not follow from them. Log the processed ones (vLLM: "
        "--logprobs-mode processed_logprobs) and import with --logprobs processed, or sample with temperature 1 "
        "and nothing else, or at temperature 0."
    )


class _Reader:
    """Turns logged texts into those of a record.

    Attributes:
        groups: The values that group each prompt; empty where the log has none.
    """

    def __init__(self, outline: ModelOutline, options: ImportOptions) -> None:
        self._outline = outline
        self._options = options
        self._texts: TokenTexts | None = None
        self.groups: list[tuple[str, ...]] = []

    def read(self, source: Path, progress: Progress) -> list[RecordedText]:
        """Return the texts of a file, those of a prompt together."""
        found: dict[tuple[int, ...], list[RecordedText]] = {}
        numbers: dict[tuple[int, ...], int] = {}
        for count, logged in enumerate(read_log(source, self._options.sampling), start=1):
            try:
                prompt = self._prompt(logged)
                same = found.setdefault(prompt, [])
                number = numbers.setdefault(prompt, len(numbers))
                same.append(self._text(logged, prompt, number, len(same)))
                self._note_group(number, logged.group)
            except LineError as error:
                raise ConfigError(f"{logged.where}: {error}") from error
            progress.advance(count)
        if not found:
            raise ConfigError(f"{source} has no texts; expected a JSON object in each line.")
        return self._ended([text for same in found.values() for text in same])

    def _note_group(self, number: int, group: tuple[str, ...]) -> None:
        """Keep the group of a prompt.

        Raises:
            LineError: Earlier lines have other columns, or another group of this prompt.
        """
        sizes = {len(one) for one in self.groups if one}
        if group and sizes - {len(group)}:
            raise LineError(f"this line has {len(group)} values of 'group', and an earlier one {max(sizes)}.")
        if number == len(self.groups):
            self.groups.append(group)
        elif self.groups[number] != group:
            ours, before = (" / ".join(one) or NO_VALUE for one in (group, self.groups[number]))
            raise LineError(
                f"this line has the group {ours}, and an earlier line with this prompt the group {before}."
            )

    def columns(self) -> list[PromptColumns]:
        """Return what is known of each prompt: nothing if no line has a group."""
        size = max(map(len, self.groups))
        none = (NO_VALUE,) * size
        each = enumerate(self.groups, start=1)
        return [PromptColumns(id=str(n), group=group or none) for n, group in each] if size else []

    def _text(self, logged: LoggedText, prompt: tuple[int, ...], number: int, sample: int) -> RecordedText:
        tokens = tuple(self._id(token) for token in logged.tokens)
        if not prompt or not tokens:
            raise LineError(f"this {'text' if prompt else 'prompt'} has no tokens.")
        self._check_ids((*prompt, *tokens))
        if not self._options.ignore_eos and set(tokens[:-1]) & set(self._outline.eos_ids):
            raise LineError(
                "this text goes on after an end of sequence; was it generated with --ignore-eos, or are two texts "
                "in one?"
            )
        p = np.ones(len(tokens), np.float32)
        if not self._options.sampling.greedy:
            if logged.logprobs is None:
                raise LineError("this text was sampled, and has no log-probabilities.")
            if len(logged.logprobs) != len(tokens):
                raise LineError(f"there are {len(tokens)} tokens and {len(logged.logprobs)} log-probabilities.")
            p = np.exp(np.array(logged.logprobs, np.float64)).astype(np.float32)
        reason = self._reason(logged.finish, tokens)
        return RecordedText(prompt, number, sample, np.array(tokens, np.int64), p, reason)

    def _prompt(self, logged: LoggedText) -> tuple[int, ...]:
        prompt = logged.prompt
        if isinstance(prompt, tuple) and all(isinstance(token, int) for token in prompt):
            return tuple(token for token in prompt if isinstance(token, int))
        tokenizer, model = self._outline.tokenizer, self._options.target.model
        if isinstance(prompt, str):
            if tokenizer is None:
                raise LineError(f"the prompt is a text, and {model} has no tokenizer; give token ids.")
            return tuple(int(token) for token in tokenizer(prompt)["input_ids"])
        chat = PromptText(logged.where, None, messages=prompt)  # type: ignore[arg-type]
        ids = render_prompt(chat, tokenizer, model=model, chat_template=self._options.chat_template)
        return tuple(token for token in ids if isinstance(token, int))

    def _id(self, token: int | str) -> int:
        if isinstance(token, int):
            return token
        if self._outline.tokenizer is None:
            raise LineError(f"tokens are logged as texts, and {self._options.target.model} has no tokenizer.")
        self._texts = self._texts or TokenTexts(self._outline.tokenizer)
        return self._texts.id_of(token)

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self._outline.vocab_size
        if (largest := max(ids)) >= size:
            raise LineError(
                f"{shortened(str(largest), 40)} is not a token id of {self._options.target.model}, which has 0 to "
                f"{size - 1}."
            )

    def _reason(self, logged: str | None, tokens: Sequence[int]) -> FinishReason:
        ended = tokens[-1] in self._outline.eos_ids and not self._options.ignore_eos
        if logged == "length" or (logged is None and not ended):
            return "length"
        if logged not in (None, "stop", "eos", "eos_token", "tool_calls", "context"):
            raise LineError(
                f"the finish reason {shortened(repr(logged), 40)} is unknown: did the server break off this text?"
            )
        if logged == "context":
            return "context"
        return "eos" if ended else "stop"

    def _ended(self, texts: list[RecordedText]) -> list[RecordedText]:
        """Return texts whose context ended before the length limit with that as their reason."""
        limit = _limit(texts, self._options)
        for text in texts:
            if len(text.tokens) > limit:
                raise ConfigError(
                    f"a text of prompt {text.number} has {len(text.tokens)} tokens, and the limit is {limit}; "
                    "pass the one that was used as --max-new-tokens."
                )
        return [
            replace(text, finish_reason="context")
            if text.finish_reason == "length" and len(text.tokens) < limit
            else text
            for text in texts
        ]


def _limit(texts: Sequence[RecordedText], options: ImportOptions) -> int:
    return options.max_new_tokens or max(len(text.tokens) for text in texts)


def _header(
    source: Path,
    texts: Sequence[RecordedText],
    outline: ModelOutline,
    options: ImportOptions,
) -> RecordHeader:
    prompts = list(dict.fromkeys(text.prompt for text in texts))
    part = PartHeader(
        sampling=options.sampling,
        generation=GenerationSettings(
            max_new_tokens=_limit(texts, options), stop=options.stop, ignore_eos=options.ignore_eos
        ),
        prompts=RecordedPrompts(
            count=len(prompts), tokens_sha256=fingerprint_ids(prompts), texts_sha256=_fingerprint(texts)
        ),
        texts=len(texts),
    )
    return RecordHeader(
        target=options.target,
        fingerprint=None,
        tokenizer=None if outline.tokenizer is None else fingerprint_tokenizer(outline.tokenizer),
        vocab_size=outline.vocab_size,
        eos_ids=outline.eos_ids,
        start_id=outline.start_id,
        max_length=outline.max_positions,
        versions=library_versions(),
        source=str(source),
        parts=(part,),
    )


def _fingerprint(texts: Sequence[RecordedText]) -> str:
    """Return a short hash of texts with their probabilities: another log makes another record."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.tokens.tobytes() + text.probabilities.tobytes())
    return digest.hexdigest()[:16]


class TokenTexts:
    """Finds the id of a token that a log spells as text, where only one token has that text.

    Several tokens may be written alike (a leading space that is dropped, parts of a character). Then nothing tells
    which one was drawn, and q of another token would be compared with its p.

    Args:
        tokenizer: A tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._ids: dict[str, list[int]] = {}
        byte_level = _is_byte_level(tokenizer)
        pieces = {token: piece for piece, token in tokenizer.get_vocab().items()}
        special = set(tokenizer.all_special_ids)
        for token, piece in pieces.items():
            forms = {piece} if token in special else set(_forms(tokenizer, token, piece, byte_level))
            for form in forms:
                self._ids.setdefault(form, []).append(token)

    def id_of(self, text: str) -> int:
        """Return the id of the only token with this text.

        Raises:
            LineError: There is none, or several.
        """
        found = self._ids.get(text, [])
        if len(found) == 1:
            return found[0]
        shown = shortened(json.dumps(text), 40)
        if not found:
            raise LineError(f"the token {shown} is not in the tokenizer of the target; is it another model's?")
        ids = ", ".join(map(str, found[:_MOST_SHOWN])) + (", ..." if len(found) > _MOST_SHOWN else "")
        raise LineError(
            f"the token {shown} may be any of {len(found)} ids ({ids}). Log token ids: `return_token_ids` or "
            "`return_tokens_as_token_ids` of vLLM."
        )


def _forms(tokenizer: Any, token: int, piece: str, byte_level: bool) -> Iterator[str]:
    """Yield the ways in which a token may be written."""
    yield tokenizer.decode([token], skip_special_tokens=False)
    if byte_level:
        characters = bytes_of_characters()
        if all(one in characters for one in piece):
            yield bytes(characters[one] for one in piece).decode("utf-8", "surrogateescape")
    elif len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        yield bytes.fromhex(piece[3:5]).decode("utf-8", "surrogateescape")
    else:
        yield piece.replace(_SPACE, " ")


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether pieces spell bytes in the characters of GPT-2."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))
