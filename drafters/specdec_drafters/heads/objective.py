"""What heads are trained and measured by: their guesses against the target's own distributions further on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specdec_core.inference import inference_only
from specdec_drafters.heads.model import Heads, head_logits
from specdec_drafters.training.losses import TV_SCALE

_LOGITS_AT_ONCE = 1 << 20
"""The most logits of one head that are made at a time; enough for a matrix product to be worth it."""
_IN_CACHE = 1 << 17
"""How many of them are worked on at a time: what a core's cache holds is three times as fast."""


@dataclass(frozen=True)
class Reading:
    """What one forward of the target tells the heads about a batch of rows.

    Attributes:
        tokens: `[B, T]` int64, the (decoder's) tokens x_0 ... x_(T - 1) of each row.
        counts: `[B, T]` bool, whether a token is one that the target wrote or shall write: none of a prompt, and
            no padding. What counts stands together in a row.
        hidden: `[B, T, D]`, what the output embedding read at each token: x_(t + 1) is predicted from
            `hidden[:, t]`.
    """

    tokens: Tensor
    counts: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Places:
    """Some places t of a reading, and what the heads guess there.

    Head i reads the hidden state at t and the token at t + 1, and guesses the token at t + 1 + i, of which the
    target has the distribution from its hidden state at t + i.

    Attributes:
        hidden: `[N, D]`, at t.
        last: `[N]` int64, the token at t + 1.
        coming: `[N, k]` int64, the tokens at t + 2 ... t + 1 + k.
        states: `[U, D]`, the target's hidden states at t + 1 ... t + k for all t, each once.
        which: `[N, k]` int64, which of those each head is compared with.
        counts: `[N, k]` bool, whether the head has a token to guess: near the end of a row the last ones have
            none.
    """

    hidden: Tensor
    last: Tensor
    coming: Tensor
    states: Tensor
    which: Tensor
    counts: Tensor


def places_of(reading: Reading, heads: int, vocab_size: int) -> Iterator[Places]:
    """Yield all places of a reading from which the first head has a token to guess.

    Args:
        reading: The rows.
        heads: k.
        vocab_size: V; so many places come at a time that the logits of one head take little memory.
    """
    longest = reading.tokens.shape[1]
    if longest < 3:
        return
    device = reading.tokens.device
    guessed = torch.arange(longest - 2, device=device)[:, None] + torch.arange(2, heads + 2, device=device)
    inside = guessed.clamp(max=longest - 1)  # [T - 2, k]
    counts = reading.counts[:, inside] & (guessed < longest)  # [B, T - 2, k]
    rows, columns = (counts[..., 0] & reading.counts[:, 1:-1]).nonzero(as_tuple=True)
    size = max(_LOGITS_AT_ONCE // vocab_size, 1)
    for row, t in zip(torch.split(rows, size), torch.split(columns, size), strict=True):
        own = row[:, None] * longest
        seen, which = torch.unique(own + inside[t] - 1, return_inverse=True)
        yield Places(
            hidden=reading.hidden[row, t],
            last=reading.tokens[row, t + 1],
            coming=reading.tokens.flatten()[own + inside[t]],
            states=reading.hidden.flatten(0, 1)[seen],
            which=which,
            counts=counts[row, t],
        )


@dataclass(frozen=True)
class Scores:
    """How well heads guess, summed over places; sums of several readings add up.

    Attributes:
        places: `[k]`, for how many places each head had a token to guess.
        overlap: `[k]`, the sum of sum_x min(p(x), q_i(x)).
        agreement: `[k]`, how often p and q_i have the same argmax.
        kept: `[k]`, the sum of the probability that all of heads 1 ... i are accepted.
    """

    places: Tensor
    overlap: Tensor
    agreement: Tensor
    kept: Tensor

    def __add__(self, other: Scores) -> Scores:
        return Scores(
            self.places + other.places,
            self.overlap + other.overlap,
            self.agreement + other.agreement,
            self.kept + other.kept,
        )

    @property
    def alpha(self) -> list[float]:
        """Corollary 3.6 for each head: E(sum_x min(p, q_i)); of arXiv 2211.17192."""
        return (self.overlap / self.places.clamp(min=1)).tolist()

    @property
    def argmax_agreement(self) -> list[float]:
        """How often each head guesses the target's argmax."""
        return (self.agreement / self.places.clamp(min=1)).tolist()

    @property
    def kept_share(self) -> list[float]:
        """The probability that heads 1 ... i are all kept, for each i."""
        return (self.kept / self.places.clamp(min=1)).tolist()

    @property
    def tokens_per_call(self) -> float:
        """Tokens of a target call with all heads: 1 and how many of the heads' are kept, on average."""
        return 1 + sum(self.kept_share)

    @property
    def run_alpha(self) -> float:
        """The share of judged tokens that are kept when all heads draft: what a run shows as its alpha.

        Head i is judged when all before it were kept.
        """
        kept = self.kept_share
        return sum(kept) / (1 + sum(kept[:-1]))


@dataclass(frozen=True)
class _Wanted:
    """The target's distributions `[U, V]`, and sum p log p of each, `[U]`: what all heads share."""

    p: Tensor
    negative_entropy: Tensor

    def at(self, which: Tensor) -> _Wanted:
        return _Wanted(self.p[which], self.negative_entropy[which])


class Objective:
    """Heads of one target: their losses, gradients and acceptance rates.

    Args:
        heads: The heads, in float32 on the device of the output embedding.
        output_embeddings: `[V, D]`, the target's, in the number format that logits are to be made in.
        input_embeddings: `[V', E]`, the target's; None where the heads read no token.
        temperature: That p and q are compared at.
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
            reading: The rows.
            tv_share: How much of the loss is total variation, the rest being KL(p || q), both from the target's
                own distributions at the same places, as `training.losses.distillation` has it; None for
                cross-entropy on the tokens of the text.
            scale: Factor on the gradients.

        Returns:
            The summed loss of each head, and the number of places each was summed over: `[k]` float64 both.
        """
        k = self._heads.shape.heads
        sums = torch.zeros(2, k, dtype=torch.float64, device=self._output.device)
        for places in places_of(reading, k, len(self._output)):
            states = self._states(places)
            wanted = None if tv_share is None else self._wanted(places.states)
            # One head after another: the logits of all of them at once would be the largest thing in memory.
            slopes = torch.empty_like(states)
            for head in range(k):
                values, slopes[:, head] = self._loss(states[:, head].detach(), places, head, wanted, tv_share)
                sums[0, head] += (values * places.counts[:, head]).sum()
            slopes *= places.counts[..., None] * scale
            states.backward(slopes)  # type: ignore[no-untyped-call]
            sums[1] += places.counts.sum(dim=0)
        return sums[0], sums[1]

    @inference_only
    def scores(self, reading: Reading) -> Scores:
        """Return how well the heads guess, on text that the target sampled itself.

        A drafted token x is kept with probability min(1, p(x) / q(x)), so that a position is kept with the
        probability sum_x min(p, q) = E_(x ~ p)[min(1, q(x) / p(x))]. The tokens of the text are such x, and no q_i
        depends on what was drafted before it: the product of those ratios over the heads before i, times the
        overlap of head i, has the probability that heads 1 ... i are all kept as its mean.
        """
        k = self._heads.shape.heads
        total = Scores(*(torch.zeros(k, dtype=torch.float64) for _ in range(4)))
        for places in places_of(reading, k, len(self._output)):
            states = self._states(places)
            distributions = self._distribution(places.states)
            reached = torch.ones(len(places.last), device=states.device)
            sums = []
            for head in range(k):
                p, q = distributions[places.which[:, head]], self._distribution(states[:, head])
                counts = places.counts[:, head]
                overlap = torch.minimum(p, q).sum(dim=-1) * counts
                agreement = (p.argmax(dim=-1) == q.argmax(dim=-1)) & counts
                sums.append(torch.stack([counts.sum(), overlap.sum(), agreement.sum(), (reached * overlap).sum()]))
                x = places.coming[:, head, None]
                reached = reached * (q.gather(1, x) / p.gather(1, x)).clamp(max=1)[:, 0]
            total += Scores(*torch.stack(sums, dim=1).double().cpu())
        return total

    def _states(self, places: Places) -> Tensor:
        embedded = None
        if self._input is not None:
            embedded = functional.embedding(places.last.to(self._input.device), self._input).to(places.hidden)
        states: Tensor = self._heads(places.hidden, embedded)
        return states

    @torch.no_grad()
    def _distribution(self, states: Tensor) -> Tensor:
        """Return softmax(logits / temperature) of states `[N, D]`: `[N, V]` float32."""
        return torch.softmax(
            head_logits(states.to(self._output.dtype), self._output).float() / self._temperature, dim=-1
        )

    @torch.no_grad()
    def _wanted(self, states: Tensor) -> _Wanted:
        log_p = torch.log_softmax(
            head_logits(states.to(self._output.dtype), self._output).float() / self._temperature, dim=-1
        )
        p = log_p.exp()
        return _Wanted(p, log_p.mul_(p).sum(dim=-1))

    @torch.no_grad()
    def _loss(
        self, states: Tensor, places: Places, head: int, wanted: _Wanted | None, tv_share: float | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one head at each place, `[N]`, and its gradient in the head's states, `[N, D]`.

        The gradients in the logits are those of `training.losses`; made here in one go with p, which all heads
        share, and without keeping anything of the size of the logits.
        """
        logits = head_logits(states.to(self._output.dtype), self._output)
        step = max(_IN_CACHE // logits.shape[1], 1)
        values = torch.empty(len(states), device=states.device)
        for first in range(0, len(states), step):
            part = slice(first, first + step)
            log_q = torch.log_softmax(logits[part].float() / self._temperature, dim=-1)
            if wanted is None or tv_share is None:
                values[part], slope = _cross_entropy(log_q, places.coming[part, head])
            else:
                values[part], slope = _distillation(wanted.at(places.which[part, head]), log_q, tv_share)
            logits[part] = slope
        return values, functional.linear(logits, self._output.T).to(states) / self._temperature


def _cross_entropy(log_q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log q(token), `[N]`, and its gradient `[N, V]` in the logits (at temperature 1)."""
    at = tokens[:, None]
    slope = log_q.exp()
    return -log_q.gather(1, at)[:, 0], slope.scatter_add_(1, at, -torch.ones_like(at, dtype=slope.dtype))


def _distillation(wanted: _Wanted, log_q: Tensor, tv_share: float) -> tuple[Tensor, Tensor]:
    """Return (1 - share) KL(p || q) + `TV_SCALE` share TV(p, q), `[N]`, and its slope in the logits, `[N, V]`."""
    p, q = wanted.p, log_q.exp()
    slope = q - p
    kl = wanted.negative_entropy - log_q.mul_(p).sum(dim=-1)
    if not tv_share:
        return kl, slope
    tv = 1 - torch.minimum(p, q).sum(dim=-1)
    risen = q * (q < p)
    slope.mul_(1 - tv_share).add_(q.mul_(risen.sum(dim=-1, keepdim=True)).sub_(risen), alpha=TV_SCALE * tv_share)
    return (1 - tv_share) * kl + TV_SCALE * tv_share * tv, slope
