"""`specdec train heads`: trains heads on a target's hidden state to predict its next tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.interface import ModelError
from specdec_core.models import LoadedModel
from specdec_drafters.heads.drafter import Heads, HeadsCard, HeadsShape, head_logits, write_heads
from specdec_drafters.settings import HeadsTrainerConfig
from specdec_drafters.training.loop import Objective, StepResult
from specdec_drafters.training.losses import TV_SCALE, Scores, depth_scores, tv_share
from specdec_drafters.training.rows import Rows, autocast
from specdec_drafters.training.trainer import (
    TargetDistillation,
    TrainingRun,
    WeightsTrainer,
    text_facts,
    without_home,
)

_LOGITS_AT_ONCE = 1 << 20
"""The most logits of one head computed at a time; enough for efficient matrix products."""
_IN_CACHE = 1 << 17
"""Number of logits processed at a time: within a core's cache this is three times as fast."""


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


@dataclass(frozen=True)
class _Target:
    """The target's distributions `[U, V]` and sum p log p of each, `[U]`, shared by all heads."""

    p: Tensor
    negative_entropy: Tensor

    def at(self, which: Tensor) -> _Target:
        return _Target(self.p[which], self.negative_entropy[which])


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

    def backward(self, reading: Reading, tv_share: float | None, scale: float) -> tuple[Tensor, Tensor]:
        """Add the gradients of `scale` times the summed loss of all heads to those of the heads' weights.

        Args:
            reading: The sequences.
            tv_share: Share of total variation in the loss, the rest being KL(p || q), as in
                `training.losses.distillation`; None for cross-entropy on the tokens of the text.
            scale: Factor on the gradients.

        Returns:
            The summed loss of each head and its number of positions, `[k]` float64 both.
        """
        k = self._heads.shape.heads
        sums = torch.zeros(2, k, dtype=torch.float64, device=self._output.device)
        for positions in positions_of(reading, k, len(self._output)):
            states = self._states(positions)
            target = None if tv_share is None else self._target(positions.states)
            # One head at a time: the logits of all heads would dominate memory.
            slopes = torch.empty_like(states)
            for head in range(k):
                values, slopes[:, head] = self._loss(states[:, head].detach(), positions, head, target, tv_share)
                sums[0, head] += (values * positions.counts[:, head]).sum()
            slopes *= positions.counts[..., None] * scale
            states.backward(slopes)  # type: ignore[no-untyped-call]
            sums[1] += positions.counts.sum(dim=0)
        return sums[0], sums[1]

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

    @torch.no_grad()
    def _distribution(self, states: Tensor) -> Tensor:
        """Return softmax(logits / temperature) of states `[N, D]`: `[N, V]` float32."""
        return torch.softmax(
            head_logits(states.to(self._output.dtype), self._output).float() / self._temperature, dim=-1
        )

    @torch.no_grad()
    def _target(self, states: Tensor) -> _Target:
        log_p = torch.log_softmax(
            head_logits(states.to(self._output.dtype), self._output).float() / self._temperature, dim=-1
        )
        p = log_p.exp()
        return _Target(p, log_p.mul_(p).sum(dim=-1))

    @torch.no_grad()
    def _loss(
        self, states: Tensor, positions: Positions, head: int, target: _Target | None, tv_share: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one head at each position, `[N]`, and its gradient in the head's states, `[N, D]`.

        The gradients in the logits are those of `training.losses`, computed here together with p, which all heads
        share, and without keeping anything of the size of the logits.
        """
        logits = head_logits(states.to(self._output.dtype), self._output)
        step = max(_IN_CACHE // logits.shape[1], 1)
        values = torch.empty(len(states), device=states.device)
        for first in range(0, len(states), step):
            part = slice(first, first + step)
            log_q = torch.log_softmax(logits[part].float() / self._temperature, dim=-1)
            if target is None or tv_share is None:
                values[part], slope = _cross_entropy(log_q, positions.coming[part, head])
            else:
                values[part], slope = _distillation(target.at(positions.which[part, head]), log_q, tv_share)
            logits[part] = slope
        return values, functional.linear(logits, self._output.T).to(states) / self._temperature


def _cross_entropy(log_q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log q(token), `[N]`, and its gradient `[N, V]` in the logits (at temperature 1)."""
    at = tokens[:, None]
    slope = log_q.exp()
    return -log_q.gather(1, at)[:, 0], slope.scatter_add_(1, at, -torch.ones_like(at, dtype=slope.dtype))


def _distillation(target: _Target, log_q: Tensor, tv_share: float) -> tuple[Tensor, Tensor]:
    """Return (1 - share) KL(p || q) + `TV_SCALE` share TV(p, q), `[N]`, and its slope in the logits, `[N, V]`."""
    p, q = target.p, log_q.exp()
    slope = q - p
    kl = target.negative_entropy - log_q.mul_(p).sum(dim=-1)
    if not tv_share:
        return kl, slope
    tv = 1 - torch.minimum(p, q).sum(dim=-1)
    risen = q * (q < p)
    slope.mul_(1 - tv_share).add_(q.mul_(risen.sum(dim=-1, keepdim=True)).sub_(risen), alpha=TV_SCALE * tv_share)
    return (1 - tv_share) * kl + TV_SCALE * tv_share * tv, slope


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
    keywords: dict[str, Any] = {"input_ids": rows.tokens}
    if target.encoder_decoder:
        assert rows.source_mask is not None, "an encoder needs sources"
        mask = rows.source_mask.long()
        keywords = {"input_ids": rows.sources, "attention_mask": mask, "decoder_input_ids": rows.tokens}
    # Padding is on the right and attention is causal, so the decoder needs no mask.
    with torch.no_grad(), target.features.capture() as seen:
        target.model(**keywords, use_cache=False)
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

    def objective(self) -> Objective:
        """Return the objective for the training loop."""
        embedding_names = [name for name in self._views if name.endswith("bias")]
        return Objective(self._views, self.gradients, self.measure, embedding_names)

    def gradients(self, step: int, done: float) -> StepResult:
        """Accumulate the gradients of a step's mean loss, part by part."""
        self.heads.zero_grad()
        rows = self._batches.at(step)
        positions = sum(one.positions for one in rows)
        scale = 1 / (positions * self.heads.shape.heads)
        share = None if self.config.loss == "ce" else tv_share(self.config.loss, done)
        total = number = 0.0
        for part in (part for one in rows for part in one.split(self._part)):
            with autocast(self.dtype, self.target.device):
                reading = read_rows(self.target, part.to(self.target.device))
                losses, counts = self._training.backward(reading, share, scale)
            total, number = total + float(losses.sum()), number + float(counts.sum())
        self._copy_gradients()
        return StepResult(total / max(number, 1), positions)

    def _copy_gradients(self) -> None:
        """Copy the gradients of the stacked weights to their views."""
        stacked = dict(self.heads.named_parameters())
        for name, view in self._views.items():
            whole, _, head = name.partition("/")
            gradient = stacked[whole].grad
            if gradient is None:
                view.grad = torch.zeros_like(view)
            else:
                view.grad = _part_of(gradient, self.heads.shape, int(head)) if head else gradient

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
