"""`specdec train heads`: trains heads on a target's hidden state to predict its next tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.models import LoadedModel
from specdec_drafters.common.weights_file import target_features
from specdec_drafters.heads.drafter import Heads, HeadsCard, HeadsShape, head_logits, write_heads
from specdec_drafters.settings import HeadsTrainerConfig
from specdec_drafters.training.drafts import (
    DraftStep,
    TargetReading,
    draft_scores,
    draft_step,
    drafts_loss,
    target_logits,
)
from specdec_drafters.training.loop import StepResult
from specdec_drafters.training.losses import Scores, tv_share
from specdec_drafters.training.rows import Rows, autocast
from specdec_drafters.training.trainer import TargetDistillation, TrainingRun, WeightsTrainer, card_of


def drafted(
    heads: Heads, reading: TargetReading, output_embeddings: Tensor, input_embeddings: Tensor | None
) -> Iterator[DraftStep]:
    """Yield what each head predicts from every position of a text, the first head's first.

    Head i reads the target's hidden state at t and the token at t + 1, and predicts the token at t + 1 + i.

    Args:
        heads: The heads, in float32 on the device of the output embedding.
        reading: The text.
        output_embeddings: `[V, D]`, of the target, in the data type for the logits.
        input_embeddings: `[V', E]`, of the target; None if the heads read no token.
    """
    tokens = reading.rows.tokens[:, 1:]
    hidden, embedded = reading.states[:, :-1].flatten(0, 1), None
    if input_embeddings is not None:
        last = tokens.flatten().to(input_embeddings.device)
        embedded = functional.embedding(last, input_embeddings).to(hidden)
    states = heads(hidden, embedded).unflatten(0, tokens.shape)

    def logits(values: Tensor) -> Tensor:
        return head_logits(values.to(output_embeddings.dtype), output_embeddings)

    for depth in range(min(heads.shape.heads, tokens.shape[1] - 1)):
        yield draft_step(reading, depth, states[:, :, depth], logits)


def read_rows(target: LoadedModel, rows: Rows) -> TargetReading:
    """Run the target over training sequences, with its last hidden states in float32.

    Args:
        target: The target; its encoder, if any, reads the sources.
        rows: The sequences, on its device.
    """
    assert target.features is not None
    with target.features.capture() as seen:
        logits = target_logits(target, rows)
    hidden = seen[-1].float()
    return TargetReading(rows.to(hidden.device), hidden, logits.to(hidden.device))


class Distillation(TargetDistillation[HeadsTrainerConfig, Heads]):
    """Heads, the target they read, and the data to train and evaluate them on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        features, self.heads = self.target.features, self.prepared
        assert features is not None
        self._output = features.output_embeddings[: self.target.vocab_size]
        self._read = features.input_embeddings if self.heads.shape.reads_token else None
        self.parameters = dict(_views(self.heads))
        self.embedding_names = [name for name in self.parameters if name.endswith("bias")]
        self._part = max(1, self._part // self.heads.shape.heads)  # each head has logits of its own

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the mean loss of the heads, times the number of positions of some rows."""
        share = None if self.config.loss == "ce" else tv_share(self.config.loss, done)
        with autocast(self.dtype, self.target.device):
            reading = read_rows(self.target, rows)
            if reading.drafted:
                steps = drafted(self.heads, reading, self._output.to(self.dtype), self._read)
                yield drafts_loss(steps, share, self.config.temperature) * rows.positions

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part, and give each view its part of them."""
        stacked = dict(self.heads.named_parameters())
        for weight in stacked.values():
            weight.grad = torch.zeros_like(weight)
        result = super().gradients(step, done)
        for name, view in self.parameters.items():
            whole, _, head = name.partition("/")
            gradient = stacked[whole].grad
            assert gradient is not None
            view.grad = _part_of(gradient, self.heads.shape, int(head)) if head else gradient
        return result

    def scored(self, rows: Rows) -> Scores:
        """Compare the heads with the target on some rows; see `draft_scores`."""
        steps = drafted(self.heads, read_rows(self.target, rows), self._output, self._read)
        return draft_scores(steps, self.heads.shape.heads, self.config.temperature)


def _views(heads: Heads) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by name, with one matrix per head.

    They share memory with the stacked weights. The optimizer treats a matrix as a whole, and the matrices of
    different heads are independent.
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


class HeadsTrainer(WeightsTrainer[Distillation]):
    """Trains heads for the heads drafter. The target is frozen.

    One target forward pass gives the hidden states and the distributions at all positions of a text, and all heads
    learn from all of them: head i at position t is compared with the target's distribution at t + 1 + i.

    References:
        Stern, Shazeer and Uszkoreit 2018, section 6 (arXiv 1811.03115), who trained on the tokens of the text, one
        random head per step; Corollary 3.6 of arXiv 2211.17192 for the total variation.
    """

    config: HeadsTrainerConfig
    """The settings."""

    drafter = "heads"
    result = "the heads"
    rate = 1e-2
    distillation = Distillation

    def prepare(self, target: LoadedModel) -> Heads:
        """Return the heads before training.

        Raises:
            ModelError: The target has no output embedding.
        """
        config, features = self.config, target_features(target, "heads")
        token_size = features.input_embeddings.shape[1] if config.reads_token else 0
        shape = HeadsShape(config.heads, features.hidden_size, config.width or features.hidden_size, token_size)
        return Heads(shape, config.seed).to(features.output_embeddings.device)

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the file of the heads."""
        heads = trained.heads
        facts = {
            **run.facts(sum(weight.numel() for weight in heads.parameters())),
            "loss": self.config.loss,
            **run.acceptance("of each head"),
        }
        known = card_of(self.config, target, facts)
        card = HeadsCard(**vars(heads.shape), vocab_size=target.vocab_size, **known)
        write_heads(self.config.output, heads, card)
        return facts
