"""Recording: the target of a study decodes its prompts alone, and its texts are kept for replays.

Texts are decoded in batches, each of which becomes a shard of the record, so that a stopped recording continues
with the batch that it was decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from specdec_core.cluster import Pool
from specdec_core.interface import Progress
from specdec_core.interface.errors import ConfigError
from specdec_core.interface.settings import TargetConfig
from specdec_core.offline.record.decode import TextJob
from specdec_core.offline.record.format import PromptColumns, Record
from specdec_core.offline.record.outline import Outline, Part, RecordOptions, part_header, verify_times
from specdec_core.offline.record.reader import FEATURES, read_record
from specdec_core.offline.record.recorded_target import load_recorded, save_tokenizer
from specdec_core.offline.record.workers import RecordedTarget
from specdec_core.offline.record.writer import RecordWriter, check_folder
from specdec_core.sampling.generators import row_seed
from specdec_core.study.config.prompts import PromptText, conversations
from specdec_core.study.config.study import Study, Task
from specdec_core.study.run.folder import RESUMED, exclusive_lock, when_stopped
from specdec_core.study.run.worker import TargetJobs, working_here

__all__ = ["RecordOptions", "record_study", "record_tasks", "time_record"]

_DEFAULTS = RecordOptions()


def record_study(
    study: Study,
    output: Path,
    progress: Progress,
    options: RecordOptions = _DEFAULTS,
    *,
    fresh: bool = False,
) -> Record:
    """Record the target of a study on the prompts of every task, or resume a recording that was stopped.

    Args:
        study: The study; its runs play no part.
        output: Folder of the record.
        progress: Where progress is reported.
        options: What to record, and how.
        fresh: Discard the record that is in the folder.

    Raises:
        SpecdecError: As `record_tasks`.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    return record_tasks(study.tasks, output, progress, options, folder=study.folder, fresh=fresh)


def record_tasks(
    tasks: Sequence[Task],
    output: Path,
    progress: Progress,
    options: RecordOptions = _DEFAULTS,
    *,
    folder: Path = Path(),
    fresh: bool = False,
    pool: Pool | None = None,
) -> Record:
    """Record a target on the prompts of some tasks; each becomes a part of the record.

    Sample 0 of prompt i has the tokens of the live baseline, which decodes it with the seed `row_seed(seed, i)`.
    Sample s has the seed `row_seed(seed, s * n + i)` for n prompts: it is what the baseline decodes for prompt i
    in round s of a list that repeats the prompts.

    Args:
        tasks: The tasks, with one target.
        output: Folder of the record.
        progress: Where progress is reported.
        options: What to record, and how.
        folder: Base for relative paths.
        fresh: Discard the record that is in the folder.
        pool: Workers that load the target and decode; by default this process.

    Raises:
        ConfigError: The tasks have several targets or beams, or the folder holds another record.
        SpecdecError: The target cannot be loaded or cannot decode the prompts, or the folder cannot be written.
        KeyboardInterrupt: On Ctrl-C; the message says what was stored.
    """
    _check_tasks(tasks)
    config = tasks[0].target
    check_folder(output)
    with exclusive_lock(output, "recording"), working_here(None, progress):
        target = RecordedTarget(TargetJobs(pool, config, folder))
        if pool is not None:
            progress.stage(f"loading {config.model}")
        outline = target.outline(tasks, options)
        parts = outline.parts
        writer = RecordWriter(output, outline.header, fresh=fresh)
        _save_target(writer, target, outline)
        for number, part in enumerate(parts):
            writer.add_columns(number, map(_columns, part.task.prompts))
        total = sum(part.texts for part in parts)
        with when_stopped(
            lambda: f"stopped; {sum(writer.done)} of {total} texts are stored in {output}. {RESUMED}"
        ):
            for number in range(len(parts)):
                _record_part(writer, number, target, outline, options, progress)
            if options.gamma is not None:
                hottest = max(parts, key=lambda part: part.task.sampling.temperature)
                if pool is not None:
                    progress.stage("timing the target")
                how = hottest.openings, part_header(hottest), options.gamma, options.timings
                writer.add_times(target.verify_times(*how))
        return writer.record()


def _check_tasks(tasks: Sequence[Task]) -> None:
    models = list(dict.fromkeys(task.target.model for task in tasks))
    if any(task.target != tasks[0].target for task in tasks):
        raise ConfigError(
            f"a record has one target, and these tasks have several ({', '.join(models)}, or one with several "
            "settings); choose the tasks of one with --task."
        )
    for task in tasks:
        if task.generation.constraint is not None:
            raise ConfigError(
                task.with_task(
                    "constraint: constrained texts cannot be recorded: a replay knows no constraint, and forced "
                    "tokens have no p. Compare live, or remove `constraint`."
                )
            )
        if task.generation.beams > 1:
            raise ConfigError(
                task.with_task(
                    f"generation.beams is {task.generation.beams}, and beam search cannot be recorded: each step "
                    "chooses among several prefixes by their scores, and a text with the probabilities of its "
                    "tokens says nothing of the prefixes that were dropped. Compare live, or set beams: 1."
                )
            )


def _save_target(writer: RecordWriter, target: RecordedTarget, outline: Outline) -> None:
    """Write the tokenizer, and the embeddings where hidden states are recorded, unless they are there."""
    path, header = writer.path, writer.header
    save_tokenizer(path, header.target.model, outline.tokenizer)
    if header.hidden_size is not None and not (path / FEATURES).is_file():
        target.save_features(path, header)


def _columns(prompt: PromptText) -> PromptColumns:
    return PromptColumns(id=prompt.id, source=prompt.source, group=prompt.group, turn=prompt.turn)


def _record_part(
    writer: RecordWriter,
    number: int,
    target: RecordedTarget,
    outline: Outline,
    options: RecordOptions,
    progress: Progress,
) -> None:
    """Decode the texts of a part that are not stored."""
    part = outline.parts[number]
    if writer.done[number] == part.texts:
        return
    jobs = list(_jobs(part, options.rows, writer.done[number]))
    progress.stage(part.task.with_task("recording"), part.texts)
    progress.advance(writer.done[number])

    def advance(share: float) -> None:
        progress.advance(writer.done[number] + share * options.rows)

    with closing(target.texts(part.task, outline.kept, jobs, advance)) as found:
        for job, texts in zip(jobs, found, strict=True):
            writer.append(number, texts, sum(map(len, job.turns)) - len(texts))
            progress.advance(writer.done[number])


def _jobs(part: Part, rows: int, start: int) -> Iterator[TextJob]:
    """Yield the batches of texts from number `start` on.

    The turns of a conversation stay together. A batch has prompts on one side of the target's rotary switch, as
    its forward pass has one set of frequencies.
    """
    count, seed = len(part.prompts), part.task.generation.seed
    # Where conversations have several turns, each has one sample.
    every = [(turns, sample) for turns in conversations(part.task.prompts) for sample in range(part.samples)]
    left = (pair for pair in every if pair[0].start * part.samples + pair[1] >= start)
    for _, same in groupby(left, key=lambda pair: part.begins_long[pair[0].start]):
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


def time_record(
    output: Path,
    progress: Progress,
    gamma: int,
    timings: int = 20,
    named: TargetConfig | None = None,
) -> Record:
    """Add T(k) of this machine to a record, replacing any that is there.

    Args:
        output: Folder of the record.
        progress: Where progress is reported.
        gamma: The longest draft whose verification is timed.
        timings: Number of timings of each draft length.
        named: The target as the user names it; one of the hub is loaded only if it is named.

    Raises:
        ConfigError: It is not a record, or the target is not the one that was recorded, or not named.
        ModelError: The target cannot be loaded.
    """
    with exclusive_lock(output, "recording"):
        record = read_record(output)
        record = record if named is None else record.naming(named)
        progress.stage(f"loading {record.header.target.model}")
        target = load_recorded(record)
        part = max(record.parts, key=lambda part: part.header.sampling.temperature)
        prompts = tuple(dict.fromkeys(text.prompt for text in part))
        times = verify_times(target, prompts, part.header, gamma, timings, progress)
        writer = RecordWriter(output, record.header)
        writer.add_times(times)
        return writer.record()
