"""Recording: the target of a study decodes its prompts alone, and its texts are kept for replays.

Texts are decoded in batches, and stored batch by batch: a stopped recording continues with the batch that it was
decoding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from specdec_core.cluster import Pool
from specdec_core.costs.step_costs import measured_costs
from specdec_core.decoding.prompt_ids import encode_prompt
from specdec_core.decoding.timing import watch_steps
from specdec_core.interface import Progress
from specdec_core.interface.errors import ConfigError, ModelError, PromptError
from specdec_core.interface.files import writing_file
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel
from specdec_core.models.chat_template import Turn
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.offline.record.decode import HiddenType, Kept, TextJob, record_texts
from specdec_core.offline.record.format import (
    PartHeader,
    Record,
    RecordedPrompts,
    RecordedText,
    RecordHeader,
    TextLine,
    VerifyTimes,
    unreplayable,
)
from specdec_core.offline.record.recorded_target import (
    fingerprint_tokenizer,
    fingerprint_weights,
    save_tokenizer,
    stored_features,
)
from specdec_core.offline.record.store import FEATURES, RecordWriter, check_folder
from specdec_core.offline.record.tasks import fingerprint_ids
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.prompt_file import conversations
from specdec_core.study.config.prompts import fingerprint_prompts
from specdec_core.study.config.study import Study, Task
from specdec_core.study.run.factory import opening_prompts, ready_prompts
from specdec_core.study.run.folder import RESUMED, exclusive_lock, when_stopped
from specdec_core.study.run.provenance import library_versions
from specdec_core.study.run.worker import TargetJob, TargetJobs, worker, working_here

_JOBS_EACH = 4
"""Number of jobs for each worker, so that none waits long for the last one."""
_BATCHES = 16
"""The most batches of a job: what is decoded again if its worker dies."""


@dataclass(frozen=True)
class RecordOptions:
    """The settings of a recording.

    Attributes:
        rows: Number of texts that are decoded together.
        samples: Number of texts of each prompt where the target samples; greedy decoding has one.
        hidden: Whether to store the hidden states, which drafters such as heads read.
        hidden_dtype: Their number format; None for float32 where the target computes in it, else float16.
        keep_top: Number of most probable tokens to store at each position, with their probabilities.
        gamma: The longest draft whose verification is timed, for T(k); None times nothing.
        timings: Number of timings of each draft length.
    """

    rows: int = 8
    samples: int = 1
    hidden: bool = False
    hidden_dtype: HiddenType | None = None
    keep_top: int = 0
    gamma: int | None = None
    timings: int = 20


@dataclass(frozen=True)
class Part:
    """A task with its prompts as token ids.

    Attributes:
        task: The task.
        header: Settings of its texts.
        prompts: Its prompts, and the turns of conversations, whose prompts follow from the answers.
        openings: The prompts that nothing precedes, as token ids.
        begins_long: Whether each prompt is past the target's rotary switch; False for turns.
    """

    task: Task
    header: PartHeader
    prompts: tuple[tuple[int, ...] | Turn, ...]
    openings: tuple[tuple[int, ...], ...]
    begins_long: tuple[bool, ...]


@dataclass(frozen=True)
class Outline:
    """The facts of a record before its first text.

    Attributes:
        header: What `record.json` will hold.
        parts: The tasks with their prompts.
        kept: What is kept of each token.
        tokenizer: The target's tokenizer, or None.
    """

    header: RecordHeader
    parts: tuple[Part, ...]
    kept: Kept
    tokenizer: Any


def record_study(
    study: Study,
    output: Path,
    progress: Progress,
    options: RecordOptions = RecordOptions(),
    *,
    fresh: bool = False,
    pool: Pool | None = None,
) -> Record:
    """Record the target of a study on the prompts of every task, or resume a recording that was stopped.

    Sample 0 of prompt i has the tokens of the live baseline, which decodes it with the seed `row_seed(seed, i)`.
    Sample s has the seed `row_seed(seed, s * n + i)` for n prompts: it is what the baseline decodes for prompt i
    in round s of a list that repeats the prompts.

    Args:
        study: The study; its tasks have one target, and its runs play no part.
        output: Folder of the record.
        progress: Where progress is reported.
        options: What to record, and how.
        fresh: Discard the record that is in the folder.
        pool: Workers that load the target and decode; by default this process.

    Raises:
        ConfigError: The tasks have several targets or beams, or the folder holds another record.
        SpecdecError: The target cannot be loaded or cannot decode the prompts, or the folder cannot be written.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    _check_tasks(study.tasks)
    config = study.tasks[0].target
    check_folder(output)
    with exclusive_lock(output, "recording"), working_here(None, progress):
        jobs = TargetJobs(pool, config, study.folder)
        if pool is not None:
            progress.stage(f"loading {config.model}")
        outline: Outline = jobs.ask(_outline, [replace(task, runs=()) for task in study.tasks], options)
        writer = RecordWriter(output, outline.header, fresh=fresh)
        save_tokenizer(output, config.model, outline.tokenizer)
        if outline.header.hidden_size is not None and not (output / FEATURES).is_file():
            with writing_file(output / FEATURES) as temporary:
                temporary.write_bytes(jobs.ask(_features, outline.header))
        total = sum(part.header.texts for part in outline.parts)
        with when_stopped(
            lambda: f"stopped; {sum(writer.stored)} of {total} texts are stored in {output}. {RESUMED}"
        ):
            for number in range(len(outline.parts)):
                _record_part(writer, number, jobs, outline, options, progress)
            if options.gamma is not None:
                part = max(outline.parts, key=lambda part: part.task.sampling.temperature)
                if pool is not None:
                    progress.stage("timing the target")
                times = jobs.alone(_verify_times, part.openings, part.header, options.gamma, options.timings)
                writer.add_times(times)
        return writer.record()


def _record_part(
    writer: RecordWriter,
    number: int,
    jobs: TargetJobs,
    outline: Outline,
    options: RecordOptions,
    progress: Progress,
) -> None:
    """Decode the batches of a part that are not stored."""
    part = outline.parts[number]
    left, done = list(_batches(part, options.rows)), 0
    while left and done + len(left[0].texts) <= writer.stored[number]:
        done += len(left.pop(0).texts)
    if not left:
        return
    task = part.task
    progress.stage(task.with_task("recording"), part.header.texts)
    progress.advance(done)
    worker().advance = lambda share: progress.advance(writer.stored[number] + share * options.rows)
    size = 1 if jobs.workers == 1 else min(_BATCHES, -(-len(left) // (_JOBS_EACH * jobs.workers)))
    some = [left[first : first + size] for first in range(0, len(left), size)]
    found = jobs.map(_texts, [(task.sampling, task.generation, outline.kept, each) for each in some])
    with writer.task(number, keep=done) as stored:
        for batches, decoded in zip(some, found, strict=True):
            for batch, texts in zip(batches, decoded, strict=True):
                by_name = {(text.number, text.sample): text for text in texts}
                named = ((task.prompts[name[0]], *name, by_name.get(name)) for name in batch.texts)
                stored.append([TextLine.of(*one, task.sampling) for one in named], texts)
                progress.advance(writer.stored[number])


def _batches(part: Part, rows: int) -> Iterator[TextJob]:
    """Yield the batches of texts.

    The turns of a conversation stay together. A batch has prompts on one side of the target's rotary switch, as
    its forward pass has one set of frequencies.
    """
    count, seed = len(part.prompts), part.task.generation.seed
    samples = part.header.texts // count
    # Where conversations have several turns, each has one sample.
    every = [(turns, sample) for turns in conversations(part.task.prompts) for sample in range(samples)]
    for _, same in groupby(every, key=lambda pair: part.begins_long[pair[0].start]):
        alike = list(same)
        for first in range(0, len(alike), rows):
            batch = alike[first : first + rows]
            yield TextJob(
                turns=tuple(tuple(part.prompts[turn] for turn in turns) for turns, _ in batch),
                numbers=tuple(tuple(turns) for turns, _ in batch),
                samples=tuple(sample for _, sample in batch),
                seeds=tuple(
                    tuple(row_seed(seed, sample * count + turn) for turn in turns) for turns, sample in batch
                ),
            )


def _check_tasks(tasks: Sequence[Task]) -> None:
    if any(task.target != tasks[0].target for task in tasks):
        models = ", ".join(dict.fromkeys(task.target.model for task in tasks))
        raise ConfigError(
            f"a record has one target, and these tasks have several ({models}, or one with several settings); "
            "choose the tasks of one with --task."
        )
    for task in tasks:
        for key in unreplayable(task.generation):
            problem = f"generation.{key} cannot be recorded, as no replay knows it. Compare live."
            raise ConfigError(task.with_task(problem))


def _outline(job: TargetJob, tasks: Sequence[Task], options: RecordOptions) -> Outline:
    """Return the outline of the record of some tasks.

    Raises:
        PromptError: The target cannot take some of the prompts.
        ConfigError: Several samples of a conversation are asked for.
        ModelError: Hidden states are asked for, and the target has no output embedding.
    """
    target = worker().target(job)
    if options.hidden and target.features is None:
        raise ModelError(f"{target.name} has no output embedding, so its hidden states cannot be recorded.")
    parts = tuple(_part(task, target, options.samples) for task in tasks)
    switched = any(long for part in parts for long in part.begins_long)
    header = RecordHeader(
        target=tasks[0].target,
        fingerprint=fingerprint_weights(target),
        tokenizer=None if target.tokenizer is None else fingerprint_tokenizer(target.tokenizer),
        vocab_size=target.vocab_size,
        eos_ids=target.eos_ids,
        start_id=target.start_id,
        max_length=target.family.max_positions if switched else target.max_positions,
        most_uncached=target.most_uncached,
        hidden_size=target.features.hidden_size if options.hidden and target.features is not None else None,
        top_k=min(options.keep_top, target.vocab_size),
        versions=library_versions(),
        parts=tuple(part.header for part in parts),
    )
    hidden = options.hidden_dtype or ("float32" if target.model.dtype == torch.float32 else "float16")
    return Outline(header, parts, Kept(hidden if options.hidden else None, header.top_k), target.tokenizer)


def _features(job: TargetJob, header: RecordHeader) -> bytes:
    return stored_features(worker().target(job), header.fingerprint)


def _texts(
    target: TargetJob,
    sampling: SamplingSettings,
    generation: GenerationSettings,
    kept: Kept,
    jobs: Sequence[TextJob],
) -> list[list[RecordedText]]:
    loaded, advance = worker().target(target), worker().advance
    return [record_texts(loaded, job, sampling, generation, kept, advance) for job in jobs]


def _part(task: Task, target: LoadedModel, samples: int) -> Part:
    try:
        opening = opening_prompts(target, task.prompts, task.chat_template)
        ready = ready_prompts(target, task.prompts, task.chat_template)
    except PromptError as error:
        raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
    if task.sampling.greedy:
        samples = 1
    elif samples > 1 and len(task.prompts) > len(opening):
        raise ConfigError(
            task.with_task(
                f"samples is {samples}, and a later turn of a conversation follows one answer. Record one sample, "
                "or first turns alone: `turns: first`."
            )
        )
    prompts = tuple(
        one if isinstance(one, Turn) else tuple(encode_prompt(target, one, str(n))) for n, one in enumerate(ready)
    )
    openings = tuple(tuple(encode_prompt(target, one, str(n))) for n, one in enumerate(opening))
    header = PartHeader(
        task=task.name,
        sampling=task.sampling,
        generation=task.generation,
        prompts=RecordedPrompts(
            settings=task.prompts_config.model_dump(mode="json", exclude_defaults=True),
            count=len(prompts),
            sha256=fingerprint_prompts(task.prompts, task.chat_template),
            # Where turns follow answers, the settings and the texts of the study tell the prompts.
            tokens_sha256=fingerprint_ids(openings) if len(openings) == len(prompts) else None,
        ),
        texts=len(prompts) * samples,
    )
    long = tuple(not isinstance(prompt, Turn) and target.begins_long(len(prompt)) for prompt in prompts)
    return Part(task, header, prompts, openings, long)


def _verify_times(
    job: TargetJob, prompts: Sequence[Sequence[int]], settings: PartHeader, gamma: int, timings: int
) -> VerifyTimes:
    """Time the target's forward pass with drafts of each length."""
    target, progress = worker().target(job), worker().progress
    generation = settings.generation
    progress.stage("timing the target", (timings + 1) * (gamma + 1))
    reports = watch_steps(
        target,
        prompts,
        gamma=gamma,
        timings=timings,
        sampling=settings.sampling,
        max_new_tokens=generation.max_new_tokens,
        seed=generation.seed,
        advance=progress.advance,
    )
    costs = measured_costs(reports, gamma)
    return VerifyTimes(
        device=describe_hardware(target),
        verify=costs.verify,
        verify_spread=costs.verify_spread,
        overhead=costs.overhead,
    )
