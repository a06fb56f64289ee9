"""Recording: the target of a study decodes its prompts alone, and what it says is kept for replays.

Texts are decoded in batches, each of which becomes a shard of the record, so that a stopped recording continues
with the batch that it was decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from specdec_core.decoding import Decoder
from specdec_core.decoding.prompt import encode_prompt
from specdec_core.decoding.timing import CyclingGamma, Medians, RepeatLastToken, watch_steps
from specdec_core.interface import TrainingObserver
from specdec_core.interface.errors import ConfigError, ModelError, PromptError
from specdec_core.models import LoadedModel
from specdec_core.models.packing import describe_hardware
from specdec_core.record.reader import FEATURES, TOKENIZER, read_record
from specdec_core.record.record import PartHeader, Record, RecordHeader, VerifyTimes
from specdec_core.record.recorder import HiddenType, Kept, TextJob, record_texts
from specdec_core.record.target import fingerprint_tokenizer, is_builtin, save_features, save_tokenizer
from specdec_core.record.writer import RecordWriter, check_folder
from specdec_core.registry import Registry, default_registry
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.prompts import fingerprint_prompts
from specdec_core.study.config.schema import TargetConfig
from specdec_core.study.config.study import Study, Task
from specdec_core.study.run.factory import load_target, ready_prompts
from specdec_core.study.run.folder import exclusive_lock
from specdec_core.study.run.provenance import LIBRARIES, versions
from specdec_core.study.run.recorded import fingerprint_ids


@dataclass(frozen=True)
class RecordOptions:
    """What to record, and how.

    Attributes:
        rows: Number of texts that are decoded together.
        samples: Number of texts of each prompt where the target samples; greedy decoding has one.
        hidden: Whether to store the hidden states, which drafters such as heads read.
        hidden_type: Their number format; None for float32 where the target computes in it, else float16.
        top_k: Number of most probable tokens to store at each position, with their probabilities.
        gamma: The longest draft whose verification is timed, for T(k); None times nothing.
        timings: Number of timings of each draft length.
    """

    rows: int = 8
    samples: int = 1
    hidden: bool = False
    hidden_type: HiddenType | None = None
    top_k: int = 0
    gamma: int | None = None
    timings: int = 20


@dataclass(frozen=True)
class _Part:
    """A task with its prompts as token ids."""

    task: Task
    prompts: tuple[tuple[int, ...], ...]
    samples: int

    @property
    def texts(self) -> int:
        return len(self.prompts) * self.samples


def record_study(
    study: Study,
    output: Path,
    observer: TrainingObserver,
    options: RecordOptions = RecordOptions(),
    *,
    fresh: bool = False,
    registry: Registry | None = None,
) -> Record:
    """Record the target of a study on the prompts of every task, or resume a recording that was stopped.

    Args:
        study: The study; its runs play no part.
        output: Folder of the record.
        observer: Receives the progress.
        options: What to record, and how.
        fresh: Discard the record that is in the folder.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        SpecdecError: As `record_tasks`.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    return record_tasks(
        study.tasks, output, observer, options, folder=study.folder, fresh=fresh, registry=registry
    )


def record_tasks(
    tasks: Sequence[Task],
    output: Path,
    observer: TrainingObserver,
    options: RecordOptions = RecordOptions(),
    *,
    folder: Path = Path(),
    fresh: bool = False,
    registry: Registry | None = None,
) -> Record:
    """Record a target on the prompts of some tasks; each becomes a part of the record.

    Sample 0 of prompt i has the tokens of the live baseline, which decodes it with the seed `row_seed(seed, i)`.
    Sample s has the seed `row_seed(seed, s * n + i)` for n prompts: it is what the baseline decodes for prompt i
    in round s of a list that repeats the prompts.

    Args:
        tasks: The tasks, with one target.
        output: Folder of the record.
        observer: Receives the progress.
        options: What to record, and how.
        folder: Base for relative paths.
        fresh: Discard the record that is in the folder.
        registry: Where plugins come from; by default the installed ones.

    Raises:
        ConfigError: The tasks have several targets or beams, or the folder holds another record.
        SpecdecError: The target cannot be loaded or cannot decode the prompts, or the folder cannot be written.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    _check_tasks(tasks)
    check_folder(output)
    with exclusive_lock(output, "recording"):
        observer.stage(f"loading {tasks[0].target.model}")
        target = load_target(tasks[0].target, folder)
        parts = [_part(task, target, options) for task in tasks]
        writer = RecordWriter(output, _header(parts, target, options, registry or default_registry()), fresh=fresh)
        _save_target(writer, target)
        try:
            for number, part in enumerate(parts):
                _record_part(writer, number, part, target, options, observer)
            if options.gamma is not None:
                hottest = max(parts, key=lambda part: part.task.sampling.temperature)
                settings = (hottest.prompts, _part_header(hottest), options.gamma, options.timings)
                writer.add_times(_verify_times(target, *settings, observer))
        except KeyboardInterrupt as stopped:
            done, total = sum(writer.done), sum(part.texts for part in parts)
            stopped.args = (
                f"stopped; {done} of {total} texts are stored in {output}. Run the same command again to resume.",
            )
            raise
        return writer.record()


def _check_tasks(tasks: Sequence[Task]) -> None:
    models = list(dict.fromkeys(task.target.model for task in tasks))
    if any(task.target != tasks[0].target for task in tasks):
        raise ConfigError(
            f"a record has one target, and these tasks have several ({', '.join(models)}, or one with several "
            "settings); choose the tasks of one with --task."
        )
    for task in tasks:
        if task.generation.beams > 1:
            raise ConfigError(
                task.with_task(
                    f"generation.beams is {task.generation.beams}, and beam search cannot be recorded: each step "
                    "chooses among several prefixes by their scores, and a text with the probabilities of its "
                    "tokens says nothing of the prefixes that were dropped. Compare live, or set beams: 1."
                )
            )


def _part(task: Task, target: LoadedModel, options: RecordOptions) -> _Part:
    try:
        ready = ready_prompts(target, task.prompts, task.chat_template)
    except PromptError as error:
        raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
    prompts = tuple(tuple(encode_prompt(target, prompt, str(n))) for n, prompt in enumerate(ready))
    return _Part(task, prompts, 1 if task.sampling.greedy else options.samples)


def _header(
    parts: Sequence[_Part], target: LoadedModel, options: RecordOptions, registry: Registry
) -> RecordHeader:
    """Return the header of a record.

    Raises:
        ModelError: Hidden states are asked for, and the target has no output embedding.
    """
    if options.hidden and target.features is None:
        raise ModelError(f"{target.name} has no output embedding, so there are no hidden states to record.")
    every = versions(registry)
    switched = any(target.begins_long(len(prompt)) for part in parts for prompt in part.prompts)
    return RecordHeader(
        target=parts[0].task.target.model_dump(mode="json"),
        fingerprint=_fingerprint(target),
        tokenizer=None if target.tokenizer is None else fingerprint_tokenizer(target.tokenizer),
        vocab_size=target.vocab_size,
        eos_ids=target.eos_ids,
        start_id=target.start_id,
        max_length=target.family.max_positions if switched else target.max_positions,
        hidden_size=target.features.hidden_size if options.hidden and target.features is not None else None,
        top_k=min(options.top_k, target.vocab_size),
        versions={name: every[name] for name in LIBRARIES},
        parts=tuple(_part_header(part) for part in parts),
    )


def _part_header(part: _Part) -> PartHeader:
    task = part.task
    return PartHeader(
        task=task.name,
        sampling=task.sampling,
        generation=task.generation,
        prompts={
            "settings": task.prompts_config.model_dump(mode="json", exclude_defaults=True),
            "count": len(part.prompts),
            "sha256": fingerprint_prompts(task.prompts, task.chat_template),
            "tokens_sha256": fingerprint_ids(part.prompts),
        },
        texts=part.texts,
    )


def _fingerprint(target: LoadedModel) -> str | None:
    """Return the digest of the target's weights; None if they cannot be read."""
    try:
        return None if target.features is None else target.features.fingerprint()
    except ModelError:
        return None


def _save_target(writer: RecordWriter, target: LoadedModel) -> None:
    """Write the tokenizer, and the embeddings where hidden states are recorded, unless they are there."""
    path, header = writer.path, writer.header
    model = str(header.target["model"])
    if target.tokenizer is not None and not is_builtin(model) and not (path / TOKENIZER).is_dir():
        save_tokenizer(path, target.tokenizer)
    if header.hidden_size is not None and not (path / FEATURES).is_file():
        save_features(path, target, header.fingerprint)


def _record_part(
    writer: RecordWriter,
    number: int,
    part: _Part,
    target: LoadedModel,
    options: RecordOptions,
    observer: TrainingObserver,
) -> None:
    """Decode the texts of a part that are not stored."""
    if writer.done[number] == part.texts:
        return
    task = part.task
    observer.stage(task.with_task("recording"), part.texts)
    observer.advance(writer.done[number])
    kept = Kept(_hidden_type(target, options), writer.header.top_k)
    for job in _jobs(part, target, options.rows, writer.done[number]):
        done = writer.done[number]
        texts = record_texts(
            target,
            job,
            task.sampling,
            task.generation,
            kept,
            lambda share, done=done, job=job: observer.advance(done + share * len(job.seeds)),  # type: ignore[misc]
        )
        writer.append(number, texts)
        observer.advance(writer.done[number])


def _hidden_type(target: LoadedModel, options: RecordOptions) -> HiddenType | None:
    if not options.hidden:
        return None
    return options.hidden_type or ("float32" if target.model.dtype == torch.float32 else "float16")


def _jobs(part: _Part, target: LoadedModel, rows: int, start: int) -> Iterator[TextJob]:
    """Yield the batches of texts from number `start` on.

    A batch has prompts on one side of the target's rotary switch, as its forward pass has one set of frequencies.
    """
    count = len(part.prompts)
    places = (divmod(text, part.samples) for text in range(start, part.texts))
    for _, same in groupby(places, key=lambda place: target.begins_long(len(part.prompts[place[0]]))):
        alike = list(same)
        for first in range(0, len(alike), rows):
            batch = alike[first : first + rows]
            yield TextJob(
                prompts=tuple(part.prompts[prompt] for prompt, _ in batch),
                numbers=tuple(prompt for prompt, _ in batch),
                samples=tuple(sample for _, sample in batch),
                seeds=tuple(
                    row_seed(part.task.generation.seed, sample * count + prompt) for prompt, sample in batch
                ),
            )


def time_record(output: Path, observer: TrainingObserver, gamma: int, timings: int = 20) -> Record:
    """Add T(k) of this machine to a record, in the place of what is there.

    Args:
        output: Folder of the record.
        observer: Receives the progress.
        gamma: The longest draft whose verification is timed.
        timings: Number of timings of each draft length.

    Raises:
        ConfigError: It is no record, or the target is not the one that was recorded.
        ModelError: The target cannot be loaded.
    """
    with exclusive_lock(output, "recording"):
        record = read_record(output)
        header = record.header
        config = TargetConfig.model_validate(header.target)
        observer.stage(f"loading {config.model}")
        target = load_target(config)
        if header.fingerprint not in (None, _fingerprint(target)):
            raise ConfigError(
                f"{config.model} has other weights now than when {output} was recorded; record it anew."
            )
        part = max(record.parts, key=lambda part: part.header.sampling.temperature)
        prompts = tuple(dict.fromkeys(text.prompt for text in part))
        times = _verify_times(target, prompts, part.header, gamma, timings, observer)
        writer = RecordWriter(output, header)
        writer.add_times(times)
        return writer.record()


def _verify_times(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: PartHeader,
    gamma: int,
    timings: int,
    observer: TrainingObserver,
) -> VerifyTimes:
    """Time the target's forward pass with drafts of each length."""
    generation = settings.generation
    observer.stage("timing the target", (timings + 1) * (gamma + 1))
    decoder = Decoder(
        target,
        RepeatLastToken(target.info()),
        gamma=CyclingGamma(gamma, np.random.default_rng(generation.seed)),
        sampling=settings.sampling,
        strict=True,
    )
    reports = watch_steps(
        decoder,
        prompts,
        gamma=gamma,
        timings=timings,
        max_new_tokens=generation.max_new_tokens,
        seed=generation.seed,
        advance=observer.advance,
    )
    medians = Medians.of(reports, min_count=min(3, timings))
    return VerifyTimes(device=describe_hardware(target), verify=medians.verify_times(gamma), overhead=medians.rest)
