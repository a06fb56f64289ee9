"""The memory that the runs of a study need, forecast from configs before a weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specdec_core.costs.gpu.counting import ModelWork
from specdec_core.interface import PluginConfig
from specdec_core.interface.settings import ModelSettings
from specdec_core.models import ModelOutline, load_outline
from specdec_core.models.device import available_memory, parse_device, parse_dtype
from specdec_core.registry import nested_settings
from specdec_core.study.config.prompts import conversations, render_prompt
from specdec_core.study.config.study import Run, Study, Task

_EMPTY_ANSWER = {"role": "assistant", "content": ""}
_SCORES = 4
"""Bytes of a probability; logits and p of the target and q of the drafter are kept in float32."""


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes that a run needs at its largest batch.

    Attributes:
        task: Name of its task; None if the study has one only.
        run: Name of the run.
        device: The target's device.
        sequences: Number of sequences that are decoded together, beams included.
        tokens: Number of tokens of the longest, drafts included.
        weights: Weights of the target and of draft models, each as often as it is kept.
        caches: Keys and values of both.
        scores: Logits and probabilities of a step.
        free: Bytes that are free on the device; None where that is not known.
    """

    task: str | None
    run: str
    device: str
    sequences: int
    tokens: int
    weights: int
    caches: int
    scores: int
    free: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.caches + self.scores

    @property
    def fits(self) -> bool:
        """Whether that much is free, as far as it is known."""
        return self.free is None or self.total <= self.free


def memory_needs(study: Study) -> Iterator[MemoryNeed]:
    """Yield the memory that each run needs.

    Models that are spread over devices or quantized need less on each device. What a forward pass allocates for a
    moment is not counted: for a prompt of n tokens, some n times the width of the largest layer.

    Args:
        study: The study.

    Raises:
        ModelError: A model's config or tokenizer cannot be read.
        PromptError: A chat has no template.
    """
    models = _Models(study.folder)
    for task in study.tasks:
        device = parse_device(task.target.device)
        longest = max(_prompt_lengths(task, models.outline(task.target)))
        free = available_memory(device)
        for run in task.runs:
            yield _need(study, task, run, models, device, longest, free)


def _prompt_lengths(task: Task, outline: ModelOutline) -> Iterator[int]:
    """Yield the number of tokens of each prompt; of a conversation's last turn, with answers of full length."""
    for turns in conversations(task.prompts):
        first, *later = [task.prompts[turn] for turn in turns]
        said = [message for one in later for message in (_EMPTY_ANSWER, *(one.messages or ()))]
        whole = replace(first, messages=(*(first.messages or ()), *said)) if later else first
        ids = render_prompt(whole, outline.tokenizer, model=task.target.model, chat_template=task.chat_template)
        tokens = outline.tokenizer(ids).input_ids if isinstance(ids, str) else ids
        yield len(tokens) + len(later) * task.generation.max_new_tokens


class _Models:
    """What is known of models without their weights, read and counted once each.

    Args:
        folder: Base for relative paths.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outlines: dict[tuple[str | None, ...], ModelOutline] = {}
        self._counted: dict[tuple[str | torch.dtype | None, ...], ModelWork] = {}

    def outline(self, settings: ModelSettings) -> ModelOutline:
        """Return the facts of the model that settings name."""
        key = settings.model, settings.revision, settings.subfolder
        if key not in self._outlines:
            self._outlines[key] = load_outline(
                settings.model, folder=self._folder, revision=settings.revision, subfolder=settings.subfolder
            )
        return self._outlines[key]

    def sizes(self, settings: ModelSettings, device: torch.device, tokens: int) -> tuple[int, int]:
        """Return the bytes of a model's weights, and of its cache for so many tokens."""
        config, found = self.outline(settings).config, parse_dtype(settings.dtype, device)
        dtype = found if isinstance(found, torch.dtype) else _stored(config)
        key = settings.model, settings.revision, settings.subfolder, dtype
        if key not in self._counted:
            self._counted[key] = ModelWork(config, dtype)
        work = self._counted[key]
        size = work.parameters * dtype.itemsize
        if settings.packed == "int8":
            size += work.parameters
        elif settings.packed is True or (settings.packed == "auto" and device.type == "cpu"):
            size *= 2  # packed weights are a second copy
        return size, work.cached_bytes(tokens)


def _need(
    study: Study, task: Task, run: Run, models: _Models, device: torch.device, longest: int, free: int | None
) -> MemoryNeed:
    outline = models.outline(task.target)
    rows = min(study.config.batch_size, len(conversations(task.prompts))) * task.generation.beams
    gamma = _gamma(run)
    source = longest if outline.config.is_encoder_decoder else 0
    new = task.generation.max_new_tokens + gamma + 1
    tokens = max(source, new) if source else longest + new
    if outline.max_positions is not None:
        tokens = min(tokens, outline.max_positions + gamma + 1)
    drafts = () if run.drafter is None else _draft_models(run.drafter)
    parts = [models.sizes(settings, device, rows * tokens) for settings in (task.target, *drafts)]
    scores = rows * (gamma + 1) * outline.vocab_size * _SCORES * (2 if run.drafter is None else 3)
    weights, caches = map(sum, zip(*parts, strict=True))
    return MemoryNeed(task.name, run.name, str(device), rows, tokens, weights, caches, scores, free)


def _stored(config: Any) -> torch.dtype:
    dtype = getattr(config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _draft_models(config: PluginConfig) -> Iterator[ModelSettings]:
    """Yield the draft models that a drafter's settings name, those of nested drafters included."""
    if isinstance(config, ModelSettings):
        yield config
    for nested in nested_settings(config):
        yield from _draft_models(nested.config)


def _gamma(run: Run) -> int:
    """Return the longest draft that a run's settings name; 0 without a drafter."""
    limits = (getattr(run.gamma, name, None) for name in ("max_gamma", "gamma"))
    return next((one for one in limits if isinstance(one, int)), 0 if run.drafter is None else 16)
