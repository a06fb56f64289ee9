"""The memory that the runs of a study need, forecast from configs before a weight is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specdec_core.interface.settings import ModelSettings, TargetConfig
from specdec_core.models import ModelOutline, load_outline
from specdec_core.models.device import available_memory, parse_device, parse_dtype
from specdec_core.models.inflation import add_layers
from specdec_core.models.load.loading import auto_class
from specdec_core.registry.nesting import models_in
from specdec_core.study.config.prompt_file import conversations
from specdec_core.study.config.prompts import render_prompt
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
    for task in study.tasks:
        device, outline = parse_device(task.target.device), _outline(task.target, study.folder)
        rows = min(study.config.batch_size, len(conversations(task.prompts))) * task.generation.beams
        longest = max(_prompt_lengths(task, outline))
        target = _sizes(task.target, outline, device)
        for run in task.runs:
            gamma = _gamma(run)
            new = task.generation.max_new_tokens + gamma + 1
            tokens = max(longest, new) if outline.config.is_encoder_decoder else longest + new
            if outline.max_positions is not None:
                tokens = min(tokens, outline.max_positions + gamma + 1)
            drafts = () if run.drafter is None else models_in(run.drafter)
            sizes = [target, *(_sizes(one, _outline(one, study.folder), device) for one in drafts)]
            yield MemoryNeed(
                task=task.name,
                run=run.name,
                device=str(device),
                sequences=rows,
                tokens=tokens,
                weights=sum(weights for weights, _ in sizes),
                caches=sum(cached for _, cached in sizes) * rows * tokens,
                scores=rows * (gamma + 1) * outline.vocab_size * _SCORES * (2 if run.drafter is None else 3),
                free=available_memory(device),
            )


def _outline(settings: ModelSettings, folder: Path) -> ModelOutline:
    return load_outline(settings.model, folder=folder, revision=settings.revision, subfolder=settings.subfolder)


def _prompt_lengths(task: Task, outline: ModelOutline) -> Iterator[int]:
    """Yield the number of tokens of each prompt; of a conversation's last turn, with answers of full length."""
    for turns in conversations(task.prompts):
        first, *later = [task.prompts[turn] for turn in turns]
        said = [message for one in later for message in (_EMPTY_ANSWER, *(one.messages or ()))]
        whole = replace(first, messages=(*(first.messages or ()), *said)) if later else first
        ids = render_prompt(whole, outline.tokenizer, model=task.target.model, chat_template=task.chat_template)
        tokens = outline.tokenizer(ids).input_ids if isinstance(ids, str) else ids
        yield len(tokens) + len(later) * task.generation.max_new_tokens


def _sizes(settings: ModelSettings, outline: ModelOutline, device: torch.device) -> tuple[int, int]:
    """Return the bytes of a model's weights, and those that a token takes in its cache."""
    config, found = outline.config, parse_dtype(settings.dtype, device)
    stored = getattr(config, "dtype", None)
    dtype = next((one for one in (found, stored) if isinstance(one, torch.dtype)), torch.float32)
    with torch.device("meta"):
        model = auto_class(config).from_config(config, dtype=dtype)
    if isinstance(settings, TargetConfig) and settings.inflate is not None:
        add_layers(model, settings.model, **settings.inflate.model_dump())
    parameters = model.num_parameters()
    size = parameters * dtype.itemsize
    if settings.packed == "int8":
        size += parameters
    elif settings.packed is True or (settings.packed == "auto" and device.type == "cpu"):
        size *= 2  # packed weights are a second copy
    text = model.config.get_text_config(decoder=True)
    if not hasattr(text, "num_attention_heads"):
        return size, 0  # its layers are recurrent: their states do not grow
    layers = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
    if types := getattr(text, "layer_types", None):
        layers = sum("attention" in kind or "hybrid" in kind for kind in types if kind != "linear_attention")
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or getattr(text, "d_kv", None)
    width = width or text.hidden_size // text.num_attention_heads
    copies = 4 if config.is_encoder_decoder else 2  # keys and values, also of the source
    return size, int(copies * layers * heads * width * dtype.itemsize)


def _gamma(run: Run) -> int:
    """Return the longest draft that a run's settings name; 0 without a drafter."""
    limits = (getattr(run.gamma, name, None) for name in ("max_gamma", "gamma"))
    return next((one for one in limits if isinstance(one, int)), 0 if run.drafter is None else 16)
