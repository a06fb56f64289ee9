"""Losses and acceptance rates of heads, against the target's own distributions further ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdec_drafters.heads.model import Heads, head_logits
from specdec_drafters.training.draft_scores import Scores, depth_scores
from specdec_drafters.training.losses import TV_SCALE

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
