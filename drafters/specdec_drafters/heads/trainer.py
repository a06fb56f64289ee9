"""`specdec train heads`: trains heads on a target's hidden state to predict its next tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel
from specdec_drafters.heads.drafter import Heads, HeadsCard, HeadsShape, head_logits, write_heads
from specdec_drafters.settings import HeadsTrainerConfig
from specdec_drafters.training.loop import Objective, StepResult
from specdec_drafters.training.losses import Scores, cross_entropy, depth_scores, distillation, tv_share
from specdec_drafters.training.rows import Rows, autocast, model_inputs
from specdec_drafters.training.trainer import (
    TargetDistillation,
    TrainingRun,
    WeightsTrainer,
    text_facts,
    without_home,
)

_LOGITS_AT_ONCE = 1 << 20
"""The most logits of one head computed at a time; enough for efficient matrix products."""


@dataclass(frozen=True)
class Reading:
    """The output of one target forward pass over a batch of sequences.

    Attributes:
        tokens: `[B, T]` int64, the (decoder's) tokens x_0 ... x_(T - 1) of each sequence.
        counts: `[B, T]` bool, whether a token is to be predicted: no prompt and no padding. These tokens are
            contiguous.
        hidden: `[B, T, D]`, the input of the output embedding at each token: x_(t + 1) is predicted from
            `hidden[:, t]`.
    """

    tokens: Tensor
    counts: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Positions:
    """Some positions t of a reading, and the targets of the heads there.

    Head i reads the hidden state at t and the token at t + 1, and predicts the token at t + 1 + i; the target's
    distribution of that token comes from its hidden state at t + i.

    Attributes:
        hidden: `[N, D]`, at t.
        last: `[N]` int64, the token at t + 1.
        coming: `[N, k]` int64, the tokens at t + 2 ... t + 1 + k.
        states: `[U, D]`, the target's hidden states at t + 1 ... t + k for all t, each once.
        which: `[N, k]` int64, the index of the state that each head is compared with.
        counts: `[N, k]` bool, whether the head has a token to predict; near the end of a sequence the last heads
            have none.
    """

    hidden: Tensor
    last: Tensor
    coming: Tensor
    states: Tensor
    which: Tensor
    counts: Tensor


def positions_of(reading: Reading, heads: int, vocab_size: int) -> Iterator[Positions]:
    """Yield all positions of a reading at which the first head has a token to predict.

    Args:
        reading: The sequences.
        heads: k.
        vocab_size: V; it limits how many positions come at a time, so that logits take little memory.
    """
    longest = reading.tokens.shape[1]
    if longest < 3:
        return
    device = reading.tokens.device
    predicted = torch.arange(longest - 2, device=device)[:, None] + torch.arange(2, heads + 2, device=device)
    inside = predicted.clamp(max=longest - 1)  # [T - 2, k]
    counts = reading.counts[:, inside] & (predicted < longest)  # [B, T - 2, k]
    rows, columns = (counts[..., 0] & reading.counts[:, 1:-1]).nonzero(as_tuple=True)
    size = max(_LOGITS_AT_ONCE // vocab_size, 1)
    for row, t in zip(torch.split(rows, size), torch.split(columns, size), strict=True):
        own = row[:, None] * longest
        seen, which = torch.unique(own + inside[t] - 1, return_inverse=True)
        yield Positions(
            hidden=reading.hidden[row, t],
            last=reading.tokens[row, t + 1],
            coming=reading.tokens.flatten()[own + inside[t]],
            states=reading.hidden.flatten(0, 1)[seen],
            which=which,
            counts=counts[row, t],
        )


class HeadsLoss:
    """Heads of one target: their losses, gradients and acceptance rates.

    Args:
        heads: The heads, in float32 on the device of the output embedding.
        output_embeddings: `[V, D]`, of the target, in the data type for the logits.
        input_embeddings: `[V', E]`, of the target; None if the heads read no token.
        temperature: Temperature of p and q.
    """

    def __init__(
        self, heads: Heads, output_embeddings: Tensor, input_embeddings: Tensor | None, temperature: float = 1.0
    ) -> None:
        self._heads = heads
        self._output = output_embeddings
        self._input = input_embeddings
        self._temperature = temperature

    def of(self, reading: Reading, tv_share: float | None) -> Tensor | None:
        """Return the mean loss of the heads, summed over the positions; None if there are none.

        Args:
            reading: The sequences.
            tv_share: Share of total variation in the loss, the rest being KL(p || q); see
                `training.losses.distillation`. None for cross-entropy on the tokens of the text.
        """
        k, total = self._heads.shape.heads, None
        for positions in positions_of(reading, k, len(self._output)):
            states = self._states(positions)
            p_logits = None if tv_share is None else self._logits(positions.states)
            for head in range(k):
                counts = positions.counts[:, head]
                logits = self._logits(states[counts, head])
                if p_logits is None or tv_share is None:
                    loss = cross_entropy(logits / self._temperature, positions.coming[counts, head], mean=False)
                else:
                    theirs = p_logits[positions.which[counts, head]]
                    loss, _ = distillation(theirs, logits, tv_share, self._temperature)
                total = loss / k if total is None else total + loss / k
        return total

    @torch.inference_mode()
    def scores(self, reading: Reading) -> Scores:
        """Return the acceptance of the heads on text that the target sampled; see `depth_scores`."""
        k = self._heads.shape.heads
        total = Scores(*(torch.zeros(k, dtype=torch.float64) for _ in range(4)))
        for positions in positions_of(reading, k, len(self._output)):
            states = self._states(positions)
            distributions = self._distribution(positions.states)
            reached = torch.ones(len(positions.last), device=states.device)
            sums = []
            for head in range(k):
                p, q = distributions[positions.which[:, head]], self._distribution(states[:, head])
                counts = positions.counts[:, head]
                found, ratio = depth_scores(p, q, positions.coming[:, head], counts, reached)
                sums.append(found)
                reached = reached * ratio
            total += Scores(*torch.stack(sums, dim=1).double().cpu())
        return total

    def _states(self, positions: Positions) -> Tensor:
        embedded = None
        if self._input is not None:
            embedded = functional.embedding(positions.last.to(self._input.device), self._input).to(
                positions.hidden
            )
        states: Tensor = self._heads(positions.hidden, embedded)
        return states

    def _logits(self, states: Tensor) -> Tensor:
        return head_logits(states.to(self._output.dtype), self._output)

    def _distribution(self, states: Tensor) -> Tensor:
        """Return softmax(logits / temperature) of states `[N, D]`: `[N, V]` float32."""
        return torch.softmax(self._logits(states).float() / self._temperature, dim=-1)


def heads_shape(config: HeadsTrainerConfig, target: LoadedModel) -> HeadsShape:
    """Return the sizes of the heads for a config.

    Raises:
        ModelError: The target has no output embedding.
    """
    features = target.features
    if features is None:
        raise ModelError(
            f"{target.name} has no output embedding that heads could use; train another kind of drafter."
        )
    token_size = features.input_embeddings.shape[1] if config.reads_token else 0
    return HeadsShape(config.heads, features.hidden_size, config.width or features.hidden_size, token_size)


def read_rows(target: LoadedModel, rows: Rows) -> Reading:
    """Run the target over training sequences and return its hidden states in float32.

    Args:
        target: The target; its encoder, if any, reads the sources.
        rows: The sequences, on its device.
    """
    assert target.features is not None
    with torch.no_grad(), target.features.capture() as seen:
        target.model(**model_inputs(target, rows, rows.tokens), use_cache=False)
    hidden = seen[-1].float()
    return Reading(rows.tokens.to(hidden.device), rows.mask.to(hidden.device), hidden)


class Distillation(TargetDistillation[HeadsTrainerConfig, Heads]):
    """Heads, the target they read, and the data to train and evaluate them on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        features, heads, temperature = self.target.features, self.prepared, self.config.temperature
        assert features is not None
        self.heads = heads
        output = features.output_embeddings[: self.target.vocab_size]
        read = features.input_embeddings if heads.shape.reads_token else None
        self._training = HeadsLoss(heads, output.to(self.dtype), read, temperature)
        self._measuring = HeadsLoss(heads, output, read, temperature)
        self._views = dict(_views(heads))
        self._part = max(1, self._part // heads.shape.heads)  # each head has logits of its own

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        embedding_names = [name for name in self._views if name.endswith("bias")]
        return Objective(self._views, self.gradients, self.measure, embedding_names)

    def losses(self, rows: Rows, done: float) -> Iterator[Tensor]:
        """Yield the mean loss of the heads, summed over the positions of some rows."""
        share = None if self.config.loss == "ce" else tv_share(self.config.loss, done)
        with autocast(self.dtype, self.target.device):
            loss = self._training.of(read_rows(self.target, rows), share)
        if loss is not None:
            yield loss

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part, and give each view its part of them."""
        stacked = dict(self.heads.named_parameters())
        for weight in stacked.values():
            weight.grad = torch.zeros_like(weight)
        result = super().gradients(step, done)
        for name, view in self._views.items():
            whole, _, head = name.partition("/")
            gradient = stacked[whole].grad
            assert gradient is not None
            view.grad = _part_of(gradient, self.heads.shape, int(head)) if head else gradient
        return result

    def scores(self) -> Scores:
        """Compare the heads with the target on the held-out data, without autocast."""
        parts = [
            self._measuring.scores(read_rows(self.target, part.to(self.target.device)))
            for part in self.data.held_out.split(self._part)
        ]
        return sum(parts[1:], start=parts[0])


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


LEARNING_RATE = 1e-2
"""Default peak learning rate."""


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
    rate = LEARNING_RATE
    distillation = Distillation

    def prepare(self, target: LoadedModel) -> Heads:
        """Return the heads before training."""
        heads = Heads(heads_shape(self.config, target), self.config.seed)
        assert target.features is not None
        return heads.to(target.features.output_embeddings.device)

    def write(self, trained: Distillation, target: LoadedModel, run: TrainingRun) -> dict[str, str | int | float]:
        """Write the file of the heads."""
        heads, facts = trained.heads, self._facts(trained.heads, run)
        assert target.features is not None
        card = HeadsCard(
            **vars(heads.shape),
            vocab_size=target.vocab_size,
            target=without_home(target.name),
            fingerprint=target.features.fingerprint(),
            facts={**text_facts(self.config), **facts},
        )
        write_heads(self.config.output, heads, card)
        return facts

    def _facts(self, heads: Heads, run: TrainingRun) -> dict[str, str | int | float]:
        return {
            **run.facts(sum(weight.numel() for weight in heads.parameters())),
            "loss": self.config.loss,
            **run.acceptance("of each head"),
        }
