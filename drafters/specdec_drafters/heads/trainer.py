"""`specdec train heads`: heads on a target's hidden state learn to say what the target will say further on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from specdec_core.border import Trainer, TrainingObserver, TrainingReport
from specdec_core.errors import ModelError
from specdec_core.models import LoadedModel, load_model
from specdec_core.output import check_output, writing_file
from specdec_drafters.configs import HeadsTrainerConfig
from specdec_drafters.heads.file import HeadsCard, write_heads
from specdec_drafters.heads.model import Heads, HeadsShape
from specdec_drafters.heads.objective import Objective, Reading, Scores
from specdec_drafters.training.course import LARGEST_LOGITS, Course, follow
from specdec_drafters.training.forward import autocast
from specdec_drafters.training.loop import StepResult, Task
from specdec_drafters.training.losses import tv_share
from specdec_drafters.training.rows import Batches, Rows
from specdec_drafters.training.sources import Material
from specdec_drafters.training.wording import usage

LEARNING_RATE = 1e-2
"""The highest, unless another one is given."""


class HeadsTrainer(Trainer):
    """Trains heads for the heads drafter. The target does not change.

    One forward of the target gives the hidden states and the distributions of all places of a text, and all heads
    learn from all of them: head i at place t is held against the target's own distribution at t + 1 + i.

    References:
        Stern, Shazeer and Uszkoreit 2018, section 6 (arXiv 1811.03115), who trained on the tokens of the text, a
        head chosen at random a step; Corollary 3.6 of arXiv 2211.17192 for the total variation.
    """

    Config = HeadsTrainerConfig
    config: HeadsTrainerConfig
    """What was asked for."""

    def train(self, observer: TrainingObserver) -> TrainingReport:
        """Train; the result is one file, with the learning curve beside it.

        Raises:
            SpecdecError: What was given cannot be trained on, or the result not be written. Once there is a
                checkpoint it stays, and the training can be resumed.
        """
        config = self.config
        curve = config.output.with_suffix(".curve.jsonl")
        for path in (config.output, curve):
            check_output(path, config.overwrite)
        observer.stage("loading the target")
        target = load_model(config.target, device=config.device)
        heads = Heads(heads_shape(config, target), config.seed).to(_output_device(target))

        def task(material: Material, dtype: torch.dtype) -> Task:
            return Lesson(config, target, heads, material, dtype).task()

        course = follow(config, target, config.learning_rate or LEARNING_RATE, task, observer)
        observer.stage("writing the heads")
        facts = self._facts(heads, course)
        self._write(heads, target, facts)
        with writing_file(curve) as place:
            place.write_text("".join(json.dumps(point) + "\n" for point in course.trained.curve), encoding="utf-8")
        course.folder.remove()
        return TrainingReport((config.output, curve), facts, usage("heads", "model", config.output))

    def _facts(self, heads: Heads, course: Course) -> dict[str, str | int | float]:
        before, after = course.trained.curve[0], course.trained.curve[-1]
        return {
            **course.facts(sum(weight.numel() for weight in heads.parameters())),
            "loss": self.config.loss,
            **{
                f"{what} {when}": _by_head(point, name)
                for what, name in (("alpha of each head", "alpha_"), ("equal argmax", "argmax_"))
                for when, point in (("before", before), ("after", after))
            },
            "tokens per call before": round(before["tokens_per_call"], 4),
            "tokens per call after": round(after["tokens_per_call"], 4),
        }

    def _write(self, heads: Heads, target: LoadedModel, facts: Mapping[str, str | int | float]) -> None:
        config = self.config
        assert target.features is not None
        of_text = {
            name: str(value)
            for name in ("text", "samples", "sources", "temperature", "seed")
            if (value := getattr(config, name)) is not None
        }
        card = HeadsCard(
            shape=heads.shape,
            vocab_size=target.vocab_size,
            target=target.name,
            fingerprint=target.features.fingerprint(),
            facts={**of_text, **facts},
        )
        write_heads(config.output, heads, card)


def heads_shape(config: HeadsTrainerConfig, target: LoadedModel) -> HeadsShape:
    """Return the sizes of the heads that a config asks for.

    Raises:
        ModelError: The target has no output embedding.
    """
    features = target.features
    if features is None:
        raise ModelError(
            f"{target.name} has no output embedding that heads could use; train another drafter for it."
        )
    token_size = features.input_embeddings.shape[1] if config.reads_token else 0
    return HeadsShape(config.heads, features.hidden_size, config.width or features.hidden_size, token_size)


def _output_device(target: LoadedModel) -> torch.device:
    assert target.features is not None
    return target.features.output_embeddings.device


def _by_head(point: Mapping[str, float], name: str) -> str:
    values = [value for key, value in point.items() if key.startswith(name)]
    return ", ".join(f"{value:.3f}" for value in values)


def read_rows(target: LoadedModel, rows: Rows) -> Reading:
    """Run the target over rows, and return its hidden states in float32.

    Args:
        target: The model; with an encoder it reads the sources of the rows.
        rows: On its device.
    """
    assert target.features is not None
    keywords: dict[str, Any] = {"input_ids": rows.tokens}
    if target.encoder_decoder:
        assert rows.source_mask is not None, "an encoder needs sources"
        mask = rows.source_mask.long()
        keywords = {"input_ids": rows.sources, "attention_mask": mask, "decoder_input_ids": rows.tokens}
    # Padding lies behind and attention looks back, so that no mask is needed for the decoder.
    with torch.no_grad(), target.features.capture() as seen:
        target.model(**keywords, use_cache=False)
    hidden = seen[-1].float()
    return Reading(rows.tokens.to(hidden.device), rows.mask.to(hidden.device), hidden)


class Lesson:
    """Heads, the target they read, and rows to train and measure them on.

    Args:
        config: Loss, temperature, batch and seed.
        target: Gives hidden states and p.
        heads: Are trained.
        material: The rows.
        dtype: Of matrix products while training. Measurements are made in the target's own.
    """

    def __init__(
        self,
        config: HeadsTrainerConfig,
        target: LoadedModel,
        heads: Heads,
        material: Material,
        dtype: torch.dtype,
    ) -> None:
        assert target.features is not None
        self._config = config
        self._target = target
        self._heads = heads
        self._held_out = material.held_out
        self._batches = Batches(material.pools, config.batch_tokens, config.seed)
        self._dtype = dtype
        self._part = max(1, LARGEST_LOGITS // target.vocab_size)
        output = target.features.output_embeddings[: target.vocab_size]
        read = target.features.input_embeddings if heads.shape.reads_token else None
        self._training = Objective(heads, output.to(dtype), read, config.temperature)
        self._measuring = Objective(heads, output, read, config.temperature)
        self._views = dict(_views(heads))

    def task(self) -> Task:
        """Return what the loop needs."""
        apart = [name for name in self._views if name.endswith("bias")]
        return Task(self._views, self.gradients, self.measure, apart)

    def gradients(self, step: int, done: float) -> StepResult:
        """Add the gradients of a step's mean loss, part by part."""
        self._heads.zero_grad()
        rows = self._batches.at(step)
        positions = sum(one.positions for one in rows)
        scale = 1 / (positions * self._heads.shape.heads)
        share = None if self._config.loss == "ce" else tv_share(self._config.loss, done)
        total = number = 0.0
        for part in (part for one in rows for part in one.split(self._part)):
            with autocast(self._dtype, self._target.device):
                reading = read_rows(self._target, part.to(self._target.device))
                losses, places = self._training.backward(reading, share, scale)
            total, number = total + float(losses.sum()), number + float(places.sum())
        self._hand_on()
        return StepResult(total / max(number, 1), positions)

    def _hand_on(self) -> None:
        """Give the gradients of the stacked weights to their views."""
        stacked = dict(self._heads.named_parameters())
        for name, view in self._views.items():
            whole, _, head = name.partition("/")
            gradient = stacked[whole].grad
            if gradient is None:
                view.grad = torch.zeros_like(view)
            else:
                view.grad = _part_of(gradient, self._heads.shape, int(head)) if head else gradient

    def measure(self) -> dict[str, float]:
        """Return the held-out rates of the heads, by head and together."""
        scores = self.scores()
        point = {"alpha": scores.run_alpha, "tokens_per_call": scores.tokens_per_call}
        for name, values in (("alpha", scores.alpha), ("argmax", scores.argmax_agreement)):
            point |= {f"{name}_{head}": value for head, value in enumerate(values, start=1)}
        return point

    def scores(self) -> Scores:
        """Compare the heads with the target on the held-out rows, without autocast."""
        parts = [
            self._measuring.scores(read_rows(self._target, part.to(self._target.device)))
            for part in self._held_out.split(self._part)
        ]
        return sum(parts[1:], start=parts[0])


def _views(heads: Heads) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by name, matrices one by one for each head.

    They share memory with the stacked ones. The optimiser treats a matrix as a whole, and those of different heads
    have nothing to do with one another.
    """
    for name, weight in heads.named_parameters():
        if name.endswith("bias"):
            yield name, weight.detach().requires_grad_()
            continue
        for head in range(heads.shape.heads):
            yield f"{name}/{head}", _part_of(weight.detach(), heads.shape, head).requires_grad_()


def _part_of(weight: Tensor, shape: HeadsShape, head: int) -> Tensor:
    """Return the matrix of one head within a stacked weight."""
    return weight.view(shape.heads, shape.width, -1)[head]
