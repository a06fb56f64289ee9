"""The outline of a record, before its first text, and the times of its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec_core.costs import measured_costs
from specdec_core.decoding.prompt_ids import encode_prompt
from specdec_core.decoding.timing import watch_steps
from specdec_core.interface import Progress
from specdec_core.interface.errors import ConfigError, ModelError, PromptError
from specdec_core.models import LoadedModel
from specdec_core.models.chat_template import Turn
from specdec_core.models.fast.packing import describe_hardware
from specdec_core.offline.record.decode import HiddenType, Kept
from specdec_core.offline.record.format import PartHeader, RecordedPrompts, RecordHeader, VerifyTimes
from specdec_core.offline.record.recorded_target import fingerprint_tokenizer, fingerprint_weights
from specdec_core.offline.record.tasks import fingerprint_ids
from specdec_core.study.config.prompts import fingerprint_prompts
from specdec_core.study.config.study import Task
from specdec_core.study.run.factory import opening_prompts, ready_prompts
from specdec_core.study.run.provenance import library_versions


@dataclass(frozen=True)
class RecordOptions:
    """The settings of a recording.

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
class Part:
    """A task with its prompts as token ids.

    Attributes:
        task: The task.
        prompts: Its prompts, and the turns of conversations, whose prompts follow from the answers.
        openings: The prompts that nothing precedes, as token ids.
        begins_long: Whether each prompt is past the target's rotary switch; False for turns.
        samples: Number of texts of each prompt.
    """

    task: Task
    prompts: tuple[tuple[int, ...] | Turn, ...]
    openings: tuple[tuple[int, ...], ...]
    begins_long: tuple[bool, ...]
    samples: int

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.prompts) * self.samples


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


def outline_of(tasks: Sequence[Task], target: LoadedModel, options: RecordOptions) -> Outline:
    """Return the outline of the record of some tasks.

    Raises:
        PromptError: The target cannot take some of the prompts.
        ConfigError: Several samples of a conversation are asked for.
        ModelError: Hidden states are asked for, and the target has no output embedding.
    """
    parts = tuple(_part(task, target, options) for task in tasks)
    header = _header(parts, target, options)
    return Outline(header, parts, Kept(_hidden_type(target, options), header.top_k), target.tokenizer)


def _part(task: Task, target: LoadedModel, options: RecordOptions) -> Part:
    try:
        opening = opening_prompts(target, task.prompts, task.chat_template)
        ready = ready_prompts(target, task.prompts, task.chat_template)
    except PromptError as error:
        raise PromptError("\n".join(map(task.with_task, str(error).splitlines()))) from error
    prompts = tuple(
        one if isinstance(one, Turn) else tuple(encode_prompt(target, one, str(n))) for n, one in enumerate(ready)
    )
    long = tuple(not isinstance(prompt, Turn) and target.begins_long(len(prompt)) for prompt in prompts)
    samples = 1 if task.sampling.greedy else options.samples
    if samples > 1 and len(task.prompts) > len(opening):
        raise ConfigError(
            task.with_task(
                f"samples is {samples}, and a later turn of a conversation follows one answer. Record one sample, "
                "or first turns alone: `turns: first`."
            )
        )
    openings = tuple(tuple(encode_prompt(target, one, str(n))) for n, one in enumerate(opening))
    return Part(task, prompts, openings, long, samples)


def _header(parts: Sequence[Part], target: LoadedModel, options: RecordOptions) -> RecordHeader:
    """Return the header of a record.

    Raises:
        ModelError: Hidden states are asked for, and the target has no output embedding.
    """
    if options.hidden and target.features is None:
        raise ModelError(f"{target.name} has no output embedding, so its hidden states cannot be recorded.")
    switched = any(long for part in parts for long in part.begins_long)
    return RecordHeader(
        target=parts[0].task.target,
        fingerprint=fingerprint_weights(target),
        tokenizer=None if target.tokenizer is None else fingerprint_tokenizer(target.tokenizer),
        vocab_size=target.vocab_size,
        eos_ids=target.eos_ids,
        start_id=target.start_id,
        max_length=target.family.max_positions if switched else target.max_positions,
        hidden_size=target.features.hidden_size if options.hidden and target.features is not None else None,
        top_k=min(options.top_k, target.vocab_size),
        versions=library_versions(),
        parts=tuple(part_header(part) for part in parts),
    )


def part_header(part: Part) -> PartHeader:
    """Return the settings of the texts of a part."""
    task = part.task
    return PartHeader(
        task=task.name,
        sampling=task.sampling,
        generation=task.generation,
        prompts=RecordedPrompts(
            settings=task.prompts_config.model_dump(mode="json", exclude_defaults=True),
            count=len(part.prompts),
            sha256=fingerprint_prompts(task.prompts, task.chat_template),
            # Where turns follow answers, the settings and the texts of the study tell the prompts.
            tokens_sha256=fingerprint_ids(part.openings) if len(part.openings) == len(part.prompts) else None,
        ),
        texts=part.texts,
    )


def _hidden_type(target: LoadedModel, options: RecordOptions) -> HiddenType | None:
    if not options.hidden:
        return None
    return options.hidden_type or ("float32" if target.model.dtype == torch.float32 else "float16")


def verify_times(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: PartHeader,
    gamma: int,
    timings: int,
    progress: Progress,
    batch_size: int = 1,
) -> VerifyTimes:
    """Time the target's forward pass with drafts of each length."""
    generation = settings.generation
    progress.stage("timing the target", (timings + 1) * (gamma + 1))
    reports = watch_steps(
        target,
        None,
        prompts,
        gamma=gamma,
        timings=timings,
        sampling=settings.sampling,
        batch_size=batch_size,
        max_new_tokens=generation.max_new_tokens,
        seed=generation.seed,
        advance=progress.advance,
    )
    costs = measured_costs(reports, gamma, min_count=min(3, timings))
    return VerifyTimes(
        device=describe_hardware(target),
        batch_size=batch_size,
        verify=costs.verify,
        verify_spread=costs.verify_spread,
        overhead=costs.overhead,
    )
