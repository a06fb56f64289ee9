"""Training data: text, samples from the target, and for encoders pairs of source and target."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from specdec_core import Decoder, Observer
from specdec_core.decoding import row_seed
from specdec_core.interface import ConfigError, Progress, StepReport
from specdec_core.interface.errors import reading
from specdec_core.interface.files import input_path
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.interface.validated import validated
from specdec_core.models import LoadedModel
from specdec_drafters.common.texts import read_documents, read_ids, tokenize_documents
from specdec_drafters.settings import TrainingConfig
from specdec_drafters.training.rows import Rows, pad_rows


@dataclass(frozen=True)
class Pair:
    """A source and its target, in token ids; the target may be missing."""

    source: tuple[int, ...]
    target: tuple[int, ...] | None


def read_pairs(path: Path, model: LoadedModel) -> list[Pair]:
    """Read a JSONL file with a `source` and optionally a `target` per line, each a text or a list of token ids.

    Args:
        path: The file.
        model: The model whose tokenizer encodes texts; special tokens are added as the tokenizer does.

    Raises:
        ConfigError: The file cannot be read or is empty, or a line is malformed; with its number.
    """
    path = input_path(path)
    with reading(path, ConfigError, "JSON, one object per line"), path.open(encoding="utf-8-sig") as lines:
        pairs = list(_pairs(lines, str(path), model))
    if not pairs:
        raise ConfigError(f"--sources {path} is empty; give a file with one source per line.")
    return pairs


class _Line(BaseModel):
    """A line of the file: texts, or token ids."""

    model_config = ConfigDict(strict=True)

    source: str | list[int]
    target: str | list[int] | None = None


def _pairs(lines: Iterator[str], path: str, model: LoadedModel) -> Iterator[Pair]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        about = 'expected an object with a "source" and optionally a "target", each a text or a list of token ids'
        entry = validated(_Line, line.strip(), f"{where}: {about}")
        target = None if entry.target is None else _ids(entry.target, where, "target", model)
        yield Pair(_ids(entry.source, where, "source", model), target)


def _ids(value: str | list[int], where: str, name: str, model: LoadedModel) -> tuple[int, ...]:
    """Return the token ids of a text, or check given ids."""
    if isinstance(value, str):
        if model.tokenizer is None:
            raise ConfigError(
                f'{where}: "{name}" is a text, but {model.name} has no tokenizer: give a list of token ids, or '
                "put the tokenizer's files beside the model."
            )
        given = {"text": value} if name == "source" else {"text_target": value}
        value = list(model.tokenizer(**given)["input_ids"])
    if not value or not 0 <= min(value) <= max(value) < model.vocab_size:
        raise ConfigError(
            f'{where}: "{name}" must be a text, or a non-empty list of token ids from 0 to {model.vocab_size - 1}.'
        )
    longest = model.max_positions
    if name == "source" and longest is not None and len(value) >= longest:
        raise ConfigError(
            f'{where}: "{name}" has {len(value)} tokens, but {model.name} takes fewer than {longest}; shorten it.'
        )
    return tuple(value)


ROWS_AT_ONCE = 32
MAX_PROMPT_TOKENS = 64
HELD_OUT_SHARE = 16  # one in this many windows or pairs is held out


@dataclass(frozen=True)
class TrainingData:
    """Sequences to train on and to evaluate on.

    Attributes:
        pools: Each contributes an equal share of every batch.
        held_out: Samples from the target that are not trained on; prompts do not count.
    """

    pools: tuple[Rows, ...]
    held_out: Rows


def gather(config: TrainingConfig, target: LoadedModel, progress: Progress) -> TrainingData:
    """Return the training data for a config.

    Raises:
        ConfigError: A text or file is missing, empty or too short, or of the wrong kind for the target.
    """
    check_length(config.length, target)
    check_sources(config.sources, target)
    if config.sources is not None:
        return _from_sources(config, config.sources, target, progress)
    return _from_text(config, target, progress)


def check_length(length: int, model: LoadedModel) -> None:
    """Check the length of training sequences.

    Raises:
        ConfigError: It exceeds the positions of the model.
    """
    longest = model.max_positions
    if longest is not None and length > longest:
        raise ConfigError(
            f"--length is {length}, but {model.name} takes at most {longest} tokens; give a smaller --length."
        )


def check_source_lengths(data: TrainingData, model: LoadedModel) -> None:
    """Check the length of sources.

    Raises:
        ConfigError: One of them exceeds the positions of the model.
    """
    read = [rows.sources.shape[1] for rows in (*data.pools, data.held_out) if rows.sources is not None]
    longest = model.max_positions
    if model.encoder_decoder and longest is not None and max(read, default=0) > longest:
        raise ConfigError(
            f"the longest of --sources has {max(read)} tokens, but {model.name} takes {longest}; shorten it."
        )


def check_sources(sources: Path | None, target: LoadedModel) -> None:
    """Check that there are sources if and only if the target has an encoder.

    Raises:
        ConfigError: There are sources without an encoder, or an encoder without sources.
    """
    if target.encoder_decoder and sources is None:
        raise ConfigError(
            f'{target.name} has an encoder: give --sources, a JSONL file with a "source" and optionally a '
            '"target" per line.'
        )
    if sources is not None and not target.encoder_decoder:
        raise ConfigError(
            f"{target.name} has no encoder to read --sources; give --text, --ids or --samples instead."
        )


def own_samples(
    target: LoadedModel,
    count: int,
    seed: int,
    progress: Progress,
    prompts: Sequence[Sequence[int]] | None = None,
    temperature: float = 1.0,
    length: int = 256,
) -> list[list[int]]:
    """Sample from the target.

    Args:
        target: The target.
        count: Number of tokens in all, without prompts; the last sequence is cut to it.
        seed: The n-th sequence depends on the seed and n only.
        progress: Receives a stage `target writes`, in tokens.
        prompts: Token ids; the n-th sequence continues (with an encoder: answers) prompt n modulo their number. By
            default every sequence starts with the beginning-of-text token; a target with an encoder needs prompts.
        temperature: Sampling temperature.
        length: The longest sequence.

    Returns:
        Sequences of at most `length` tokens, including the prompt (with an encoder: the decoder's start token).
        They may end earlier.

    Raises:
        ConfigError: A prompt and a beginning-of-text token are both missing.
        PromptError: A prompt is empty or outside the target's vocabulary.
    """
    prompts = prompts or [[begin_token(target)]]
    decoder = Decoder(target, sampling=SamplingSettings(temperature=temperature))
    head = [] if target.start_id is None else [target.start_id]
    written: list[list[int]] = []
    done = 0
    progress.stage("target writes", count)
    written_tokens = _TokensWritten(progress, count)
    while done < count:
        first = len(written)
        some = min(ROWS_AT_ONCE, -(-(count - done) // max(1, length - len(head or prompts[0]))))
        numbers = range(first, first + some)
        batch = [prompts[number % len(prompts)] for number in numbers]
        room = length - min(len(head or prompt) for prompt in batch)
        settings = GenerationSettings(max_new_tokens=max(1, room))
        seeds = [row_seed(seed, number) for number in numbers]
        result = decoder.generate(batch, settings, [written_tokens], seeds)
        for prompt, row in zip(batch, result.sequences, strict=True):
            begin = list(head or prompt)
            new = list(row.tokens)[: min(max(1, length - len(begin)), count - done)]
            if new:
                written.append(begin + new)
                done += len(new)
    return written


class _TokensWritten(Observer):
    """Reports the number of tokens written, up to the number asked for."""

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress = progress
        self._count = count
        self._done = 0

    def on_step(self, report: StepReport) -> None:
        if self._done < self._count:
            new = sum(len(tokens) for tokens in report.outcome.committed)
            self._done = min(self._done + new, self._count)
            self._progress.advance(self._done)


def begin_token(target: LoadedModel) -> int:
    """Return the first token of a text of the target: its beginning-of-text or end-of-text token.

    Raises:
        ConfigError: It has neither, or it has an encoder.
    """
    if target.encoder_decoder:
        raise ConfigError(f"{target.name} has an encoder and needs a source; give --sources.")
    begin = _begin(target)
    if begin is None:
        raise ConfigError(
            f"{target.name} has no beginning-of-text or end-of-text token to start from; give --text or --ids."
        )
    return begin


def _begin(target: LoadedModel) -> int | None:
    found = getattr(target.model.config.get_text_config(decoder=True), "bos_token_id", None)
    if found is None and target.tokenizer is not None:
        found = target.tokenizer.bos_token_id
    if found is None:
        found = next(iter(target.eos_ids), None)
    return None if found is None or found >= target.vocab_size else int(found)


def text_rows(documents: Sequence[Sequence[int] | NDArray[np.int32]], length: int, begin: int | None) -> Rows:
    """Cut documents into windows of one token stream, in which each token is predicted once.

    Args:
        documents: Token ids of each document.
        length: L, tokens per window; each window starts with the last token of the previous one.
        begin: The token before each document, if any.

    Returns:
        As many windows `[N, L]` as fit; the rest is dropped.
    """
    head = np.asarray([] if begin is None else [begin], dtype=np.int64)
    parts = [part for document in documents for part in (head, np.asarray(document, dtype=np.int64))]
    stream = np.concatenate([*parts, head[:0]])
    count = max(0, (len(stream) - 1) // (length - 1))
    tokens = torch.from_numpy(stream[(length - 1) * np.arange(count)[:, None] + np.arange(length)])
    return Rows(tokens, (torch.arange(length) > 0).expand(count, length).contiguous())


def _from_text(config: TrainingConfig, target: LoadedModel, progress: Progress) -> TrainingData:
    pools: list[Rows] = []
    prompts: tuple[list[list[int]] | None, list[list[int]] | None] = (None, None)
    if config.text is not None or config.ids is not None:
        read = _read_text if config.ids is None else _read_ids
        train, held_out = read(config, target, progress)
        pools.append(train)
        prompts = (_beginnings(train), _beginnings(held_out))
    if config.samples is not None:
        pools.append(_written(config, target, progress, config.samples, 2 * config.seed, prompts[0]))
    held = _written(config, target, progress, config.held_out, 2 * config.seed + 1, prompts[1])
    return TrainingData(tuple(pools), held)


def _written(
    config: TrainingConfig,
    target: LoadedModel,
    progress: Progress,
    count: int,
    seed: int,
    prompts: Sequence[Sequence[int]] | None,
) -> Rows:
    """Return samples from the target, without prompts in the mask. With an encoder, the prompts are sources."""
    rows = own_samples(target, count, seed, progress, prompts, config.temperature, config.length)
    asked = list(itertools.islice(itertools.cycle(prompts or [[0]]), len(rows)))
    if target.encoder_decoder:
        return pad_rows(rows, [1] * len(rows), asked)
    return pad_rows(rows, [len(prompt) for prompt in asked])


def _read_text(config: TrainingConfig, target: LoadedModel, progress: Progress) -> tuple[Rows, Rows]:
    """Return the windows to train on and the held-out ones."""
    assert config.text is not None
    if target.tokenizer is None:
        raise ConfigError(
            f"--text {config.text} cannot be tokenized: {target.name} has no tokenizer. Put the tokenizer's files "
            "beside the model, or train on --samples, which need none."
        )
    progress.stage("reading the text")
    documents = tokenize_documents(read_documents(config.text, Path(), config.max_bytes), target.tokenizer)
    rows = text_rows(documents, config.length, _begin(target))
    if len(rows) < 2:
        raise ConfigError(
            f"--text {config.text} has {sum(map(len, documents))} tokens, but at least two windows of "
            f"{config.length} are needed (to train on and to evaluate on); give more text or a smaller --length."
        )
    if int(rows.tokens.max()) >= target.vocab_size:
        raise ConfigError(
            f"--text {config.text}: the tokenizer gives token {int(rows.tokens.max())}, but {target.name} has "
            f"{target.vocab_size} tokens; the tokenizer belongs to another model."
        )
    return _split(rows)


def _read_ids(config: TrainingConfig, target: LoadedModel, progress: Progress) -> tuple[Rows, Rows]:
    """Return the sequences of `ids` to train on and the held-out ones; what is too long is cut into windows."""
    assert config.ids is not None
    progress.stage("reading the token ids")
    step = config.length - 1  # each window starts with the last token of the previous one
    windows = [
        sequence[start : start + config.length].tolist()
        for sequence in read_ids(input_path(config.ids))
        for start in range(0, len(sequence) - 1, step)
    ]
    if len(windows) < 2:
        raise ConfigError(
            f"--ids {config.ids} has {len(windows)} sequence(s) of at least two tokens, but two are needed (to "
            "train on and to evaluate on); give more, one per line."
        )
    if (largest := max(map(max, windows))) >= target.vocab_size:
        raise ConfigError(
            f"--ids {config.ids} has token {largest}; {target.name} has 0 to {target.vocab_size - 1}."
        )
    return _split(pad_rows(windows, [1] * len(windows)))


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows to train on and the held-out ones, the last: neighbors are too similar."""
    split = len(rows) - max(1, len(rows) // HELD_OUT_SHARE)
    return rows.take(slice(split)), rows.take(slice(split, None))


def _beginnings(rows: Rows) -> list[list[int]]:
    """Return the first quarter of each row, at most `MAX_PROMPT_TOKENS` tokens, in random order."""
    lengths = [max(1, min(MAX_PROMPT_TOKENS, (int(count) + 1) // 4)) for count in rows.mask.sum(1)]
    order = np.random.default_rng(len(rows)).permutation(len(rows))
    return [rows.tokens[int(number), : lengths[int(number)]].tolist() for number in order]


def _from_sources(config: TrainingConfig, sources: Path, target: LoadedModel, progress: Progress) -> TrainingData:
    pairs = read_pairs(sources, target)
    if len(pairs) < 2:
        raise ConfigError(
            f"--sources {sources} has {len(pairs)} source, but two are needed (to train on and to evaluate on); "
            "give more."
        )
    order = np.random.default_rng(config.seed).permutation(len(pairs))
    pairs = [pairs[number] for number in order]
    split = len(pairs) - max(1, len(pairs) // HELD_OUT_SHARE)
    train, held = pairs[:split], [pair.source for pair in pairs[split:]]
    answered = [pair for pair in train if pair.target is not None]
    pools = [_pair_rows(answered, target, config.length)] if answered else []
    if config.samples is not None or not answered:
        asked = [pair.source for pair in train]
        count = config.samples or len(asked) * (config.length - 1)
        pools.append(_written(config, target, progress, count, 2 * config.seed, asked))
    return TrainingData(
        tuple(pools), _written(config, target, progress, config.held_out, 2 * config.seed + 1, held)
    )


def _pair_rows(pairs: Sequence[Pair], target: LoadedModel, length: int) -> Rows:
    assert target.start_id is not None
    rows = [[target.start_id, *(pair.target or ())][:length] for pair in pairs]
    return pad_rows(rows, [1] * len(rows), [pair.source for pair in pairs])
