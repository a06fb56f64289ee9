"""The tasks of a record, and the part of a record for a task of a study. Importing this imports no torch."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from specdec_core.interface.errors import ConfigError, differences
from specdec_core.interface.validated import validated
from specdec_core.offline.record.format import HEADER, PartHeader, Record, RecordedPrompts, RecordPart
from specdec_core.study.config.prompts import fingerprint_prompts, render_prompt
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.config.study import Task

_IDENTITY = ("model", "revision", "subfolder", "adapter", "quantization_config")
"""Settings that decide what a target says; the others decide how fast."""


def recorded_tasks(record: Record) -> tuple[Task, ...]:
    """Return the tasks of a record, without runs.

    Prompts are token ids, as the target read them.
    """
    return tuple(
        Task(
            name=part.header.task,
            target=record.header.target,
            prompts_config=_prompts_config(record, number),
            prompts=part.prompts,
            chat_template=None,
            sampling=part.header.sampling,
            generation=part.header.generation,
            runs=(),
        )
        for number, part in enumerate(record.parts)
    )


def named_models(tasks: Iterable[Task]) -> frozenset[str]:
    """Return the models that the targets of a user's tasks name: they may be loaded from the hub."""
    return frozenset().union(*(task.target.names() for task in tasks))


def _prompts_config(record: Record, number: int) -> PromptsConfig:
    """Return where the prompts of a part came from; imported ones with names for the columns that group them.

    Raises:
        ConfigError: The record says it in another way than a study does.
    """
    part = record.parts[number]
    if (settings := part.header.prompts.settings) is not None:
        return validated(PromptsConfig, settings, f"{record.path / HEADER}: parts.{number}.prompts.settings")
    columns = len(part.prompts[0].group) if part.prompts else 0
    names = ("group",) if columns == 1 else tuple(f"group {n}" for n in range(1, columns + 1))
    prompts = tuple(prompt.tokens or () for prompt in part.prompts)
    return PromptsConfig(tokens=prompts).model_copy(update={"group": names or None})


def part_for(record: Record, task: Task) -> RecordPart:
    """Return the texts of a record that the target of a task says, with the settings of the task.

    The seed plays no part: a record stands for what the target says, whichever texts those are.

    Args:
        record: The record.
        task: A task of a study.

    Raises:
        ConfigError: The record is of another target, or has no texts with these settings; the message says what
            differs.
    """
    wanted = task.target.model_dump(mode="json", include=set(_IDENTITY))
    there = record.header.target.model_dump(mode="json", include=set(_IDENTITY))
    if changes := differences(there, wanted):
        raise ConfigError(
            task.with_task(
                f"{record.path} is a record of another target ({'; '.join(changes)}). Record this one, or change "
                "the study."
            )
        )
    problems = [list(_problems(record, part.header, task)) for part in record.parts]
    fitting = [part for part, found in zip(record.parts, problems, strict=True) if not found]
    if not fitting:
        nearest = min(problems, key=len)
        raise ConfigError(
            task.with_task(
                f"{record.path} has no texts with these settings; in the nearest of its {len(problems)} parts "
                f"differ {'; '.join(nearest)}. Record the study (`specdec record STUDY --output DIR`), or change "
                "it."
            )
        )
    return next((part for part in fitting if part.header.task == task.name), fitting[0])


def fingerprint_ids(prompts: Sequence[Sequence[int]]) -> str:
    """Return a short hash of prompts as token ids."""
    return hashlib.sha256(json.dumps([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16]


def _problems(record: Record, part: PartHeader, task: Task) -> Iterator[str]:
    """Yield what differs between the settings of a part and of a task."""
    for name in ("sampling", "generation"):
        there, wanted = (getattr(one, name).model_dump(mode="json", exclude={"seed"}) for one in (part, task))
        yield from differences(there, wanted, name)
    if not _same_prompts(record, part.prompts, task):
        count = part.prompts.count
        yield (
            f"the prompts ({count} there, {len(task.prompts)} now)"
            if count != len(task.prompts)
            else "the prompts"
        )


def _same_prompts(record: Record, recorded: RecordedPrompts, task: Task) -> bool:
    if recorded.sha256 == fingerprint_prompts(task.prompts, task.chat_template):
        return True
    if recorded.count != len(task.prompts) or any(prompt.turn > 1 for prompt in task.prompts):
        return False
    # An import knows token ids only, and a study may give as ids what was recorded as texts.
    ids: list[Sequence[int]] = [prompt.tokens or () for prompt in task.prompts]
    if not all(ids):
        from specdec_core.offline.record.recorded_target import recorded_tokenizer

        tokenizer = recorded_tokenizer(record)
        if tokenizer is None:
            return False
        model = record.header.target.model
        texts = [
            render_prompt(one, tokenizer, model=model, chat_template=task.chat_template) for one in task.prompts
        ]
        ids = [tokenizer(one)["input_ids"] if isinstance(one, str) else one for one in texts]
    return recorded.tokens_sha256 == fingerprint_ids(ids)
