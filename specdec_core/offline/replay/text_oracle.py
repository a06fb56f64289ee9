"""Recorded texts in place of a model: they answer the drafts of a drafter, whose q of their tokens is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_core.decoding.answer import Answered
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext
from specdec_core.decoding.rows import Row, StopRule, TokenView
from specdec_core.decoding.step import Batch, Oracle
from specdec_core.decoding.validation import BAD_TOKEN, FAULTS, FINE, worst
from specdec_core.interface import (
    LAST_HIDDEN,
    BatchInfo,
    Drafter,
    Outcome,
    PluginError,
    PointMass,
    Proposal,
    SessionInfo,
    StepReport,
)
from specdec_core.interface.controllers import ScriptedGamma
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models.device import inference_only
from specdec_core.offline.record.format import RecordedText
from specdec_core.offline.replay.forced import ForcedContext, ForcedSampler
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs, with_token_ids
from specdec_core.verification.distributions import dense, density

_CERTAIN = 1 - 1e-6
"""q of a draft token from here on is that of a point mass."""


class OwnTokensError(PluginError):
    """A drafter draws its tokens itself, so that its q of a text's tokens is not known."""


@dataclass(frozen=True, eq=False)
class ForcedText:
    """A recorded text as a sequence to decode.

    Attributes:
        text: The text.
        begin: The tokens before it: the prompt, or the start token where there is an encoder.
        limit: The most tokens that the text could have had.
        reach: The most tokens that the text and a draft may have together: one less than the limit, since the last
            position is for the target's own token, or what the drafter's `max_length` leaves of it.
        hidden: `[L, D]` float, what each token was predicted from; None if no drafter needs it.
        all_p: Tokens `[L, k]` int64 and their p `[L, k]` float32, if they are all tokens that p does not exclude;
            None where the record does not say so.
        hidden_states: The outputs of layers at all tokens but the last, prompt included, `[T, D]` each.
    """

    text: RecordedText
    begin: tuple[int, ...]
    limit: int
    reach: int
    hidden: Tensor | None = None
    all_p: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.text.tokens)

    def room(self, position: int) -> int:
        """Return the number of tokens that may be drafted at a position."""
        return max(self.reach - position, 0)


@dataclass(frozen=True, eq=False)
class ForcedDraft:
    """A drafter's answer for one sequence.

    Attributes:
        ratio: `[n]` float64, q(y) / p(y) of each token y of the text, as far as it goes.
        least: `[n]` float64, the smallest q(x) / p(x) of all tokens x that p does not exclude; None where they are
            not known.
        confidence: `[n]` float32, what `keep_drafting` would be told after each token; NaN where it would not be
            asked.
        offered: Number of tokens, beyond the text too.
    """

    ratio: NDArray[np.float64]
    least: NDArray[np.float64] | None
    confidence: NDArray[np.float32]
    offered: int


class TextOracle(Oracle):
    """A batch in which recorded texts answer the drafts of a drafter, whatever it drafts; see `Oracle`.

    Args:
        drafter: The drafter.
        texts: The texts.
        max_gamma: The longest draft.
        sampling: The target's sampling settings.
        draft_sampling: Those of drafts.
        follow: Returns how many tokens of each draft are accepted; the next one is always the text's.
        live: Open inner loops as they are, which draw for themselves; those of hierarchies are forced otherwise.

    Raises:
        PluginError: The drafter fails. So do steps.

    Attributes:
        device: Where drafts are read.
        sampler: Draws the draft tokens: those of the texts.
        batch: The batch.
    """

    def __init__(
        self,
        drafter: Drafter,
        texts: Sequence[ForcedText],
        max_gamma: int,
        sampling: SamplingSettings,
        draft_sampling: SamplingSettings | None,
        follow: Callable[[Proposal], list[int]],
        *,
        live: bool = False,
    ) -> None:
        self._drafter, self._texts, self._follow, self._greedy = drafter, texts, follow, sampling.greedy
        self._whole = [[*one.begin, *one.text.tokens.tolist()] for one in texts]
        self._probabilities = [one.text.probabilities.astype(np.float64) for one in texts]
        begins = [len(one.begin) for one in texts]
        self._rows = [
            Row(list(one.begin), begin, begin + one.limit, "length")
            for one, begin in zip(texts, begins, strict=True)
        ]
        capacity = max(row.limit for row in self._rows)
        info = SessionInfo(
            batch_size=len(texts),
            vocab_size=drafter.target.vocab_size,
            capacity=capacity,
            max_gamma=min(max_gamma, capacity),
            device=drafter.target.device,
            sources=tuple(one.text.prompt for one in texts) if drafter.target.encoder_decoder else None,
            metadata=[one.text.metadata for one in texts],
        )
        self.device = torch.device(info.device)
        self._guard = PluginGuard(strict=True)
        # Draws beyond the end of a text are free.
        generators = RowGenerators([row_seed(row_seed(0, one.text.number), one.text.sample) for one in texts])
        make = LoopContext if live else partial(ForcedContext, texts=self._whole)
        settings = with_token_ids(draft_sampling or sampling, drafter.target.tokenizer, info.vocab_size)
        context = make(LogitsToProbs(settings).for_batch(begins), generators, self._guard)
        self.sampler = ForcedSampler(self._whole, info.device)
        self._budget: Sequence[int] = ()
        self._told: list[list[float]] = []  # what a controller would be told of the tokens of each row
        gamma = ScriptedGamma(max_gamma, lambda: list(self._budget), self._note_confidence)
        about = BatchInfo(len(texts), max_gamma, tuple(one.limit for one in texts), self._greedy)
        self._proposer = context.open_drafting(drafter, gamma, info, about, sampler=self.sampler)
        self.batch = Batch(self._rows, self, self._proposer, StopRule(frozenset()))

    @property
    def position(self) -> list[int]:
        """The position of each sequence in its text."""
        return [len(row.tokens) - len(one.begin) for row, one in zip(self._rows, self._texts, strict=True)]

    def step(self, budget: Sequence[int]) -> StepReport:
        """Ask for drafts of at most so many tokens for each sequence, and commit what follows of the texts."""
        self._budget, self._told = budget, [[] for _ in budget]
        return self.batch.step()

    def _note_confidence(self, confidence: Sequence[float]) -> Sequence[bool]:
        for row, value in zip(self._told, confidence, strict=True):
            if not math.isnan(value):
                row.append(value)
        return [True] * len(confidence)

    @inference_only
    def teach(self) -> None:
        """Let a drafter that remembers learn the texts, without asking for more than a draft."""
        self._budget, self._told = [1] * len(self._rows), [[] for _ in self._rows]
        views = [TokenView(row.tokens) for row in self._rows]
        proposal, _ = self._proposer.propose(
            views, [row.room for row in self._rows], self.hidden_states(self._rows)
        )
        texts = tuple(tuple(one.text.tokens.tolist()) for one in self._texts)
        nothing = (0,) * len(texts)
        self.batch.commit(Outcome(proposal.lengths, nothing, texts, (True,) * len(texts)))

    def answer(self, rows: Sequence[Row], proposal: Proposal, faults: Tensor | None) -> Answered:
        """Accept as much of the drafts as is to be followed, and go on with the texts' tokens."""
        code = FINE if faults is None else worst(faults.tolist(), proposal.lengths)
        # That q gives nothing to a token of the text is not a fault here: it would not have been drafted.
        if code not in (FINE, BAD_TOKEN):
            self.fail(FAULTS[code].format(last=self._drafter.target.vocab_size - 1))
        accepted = self._follow(proposal)
        # A row that has ended takes no more tokens.
        ahead = [[*whole[len(row.tokens) :], 0] for row, whole in zip(rows, self._whole, strict=True)]
        token = [tokens[min(n, len(tokens) - 1)] for tokens, n in zip(ahead, accepted, strict=True)]
        sound = [True] * len(token)
        return Answered(proposal.lengths, ahead, accepted, token, [], None, None, sound, FINE)

    def keep(self, rows: Sequence[Row], answered: Answered) -> None:  # noqa: ARG002
        """End the sequences whose texts end here."""
        for row, whole in zip(rows, self._whole, strict=True):
            if len(row.tokens) >= len(whole):
                row.reason = "length"

    def read(self, proposal: Proposal, *, drawn: bool = False) -> list[ForcedDraft]:
        """Return what the acceptance of drafts depends on.

        Args:
            proposal: The drafts.
            drawn: Require that the request drew every token, as it does for autoregressive drafters.

        Raises:
            PluginError: The drafter drew tokens itself, or q is not a number.
        """
        if drawn and not self._proposer.request.drew(proposal):
            self.fail(
                "it declares `autoregressive`, but drafts tokens that the request did not draw. Draw them with "
                "the request's methods, or set `autoregressive = False`."
            )
        width = proposal.tokens.shape[1]
        tokens = proposal.tokens.cpu()
        y, p = self._ahead(tokens)
        if isinstance(proposal.q, PointMass):
            q = (tokens == y).double()
            certain = torch.ones_like(q)
        else:
            on_device = y.to(proposal.tokens.device)
            both = torch.stack([density(proposal.q, on_device), density(proposal.q, proposal.tokens)])
            q, certain = both.double().cpu()
        least = self._least(proposal)
        left = [len(one) - at for one, at in zip(self._texts, self.position, strict=True)]
        drafts = []
        for index, length in enumerate(proposal.lengths):
            count = max(min(length, left[index]), 0)
            ratio = (q[index, :count] / p[index, :count]).numpy()
            other = (tokens[index, :count] != y[index, :count]).numpy()
            if other.any():
                self._refuse_own(certain[index], int(other.argmax()))
                ratio = np.where(other, 0.0, ratio)
            if np.isnan(ratio).any():
                self.fail("q of a token is NaN: its logits or probabilities are.")
            told = np.full(count, math.nan, dtype=np.float32)
            heard = self._told[index][:count] if width else []
            told[: len(heard)] = heard
            own = None if least is None else least[index, :count].numpy()
            drafts.append(ForcedDraft(ratio, own, told, length))
        return drafts

    def _ahead(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts' next tokens `[B, K]` and the target's p of them; the draft's own and 1 beyond."""
        y, p = tokens.clone(), torch.ones(tokens.shape, dtype=torch.float64)
        for index, (row, whole) in enumerate(zip(self._rows, self._whole, strict=True)):
            at = len(row.tokens) - len(self._texts[index].begin)
            known = whole[len(row.tokens) : len(row.tokens) + tokens.shape[1]]
            y[index, : len(known)] = torch.tensor(known, dtype=torch.long)
            if not self._greedy:
                p[index, : len(known)] = torch.from_numpy(self._probabilities[index][at : at + len(known)])
        return y, p

    def _least(self, proposal: Proposal) -> Tensor | None:
        """Return the smallest q(x) / p(x) of all tokens that p does not exclude, `[B, K]`; 1 beyond the texts.

        None where these are not known of all texts.
        """
        batch, width = proposal.tokens.shape
        known = [one.all_p for one in self._texts]
        if not width or any(one is None for one in known):
            return None
        q = dense(proposal.q, proposal.tokens, self._drafter.target.vocab_size)
        least = torch.ones(batch, width, dtype=torch.float64)
        for index, (all_p, at) in enumerate(zip(known, self.position, strict=True)):
            assert all_p is not None
            ids, p = (torch.from_numpy(values[at : at + width]) for values in all_p)
            own = q[index, : len(ids)].gather(1, ids.to(q.device)).double().cpu() / p
            least[index, : len(ids)] = own.where(p > 0, math.inf).amin(dim=1)
        return least

    def hidden_states(self, rows: Sequence[Row]) -> Mapping[int, Tensor]:  # noqa: ARG002
        """Return the hidden states of the sequences; none in the first step."""
        if not (self._drafter.hidden_layers and all(self.position)):
            return {}
        last = []
        for one, at in zip(self._texts, self.position, strict=True):
            assert one.hidden is not None, "hidden states were not read"
            last.append(one.hidden[min(at, len(one)) - 1])
        return {LAST_HIDDEN: torch.stack(last).to(self.device), **self._layer_outputs}

    @cached_property
    def _layer_outputs(self) -> dict[int, Tensor]:
        """The outputs of layers at the tokens of all sequences, `[B, T, D]` each."""
        layers = [layer for layer in self._drafter.hidden_layers if layer != LAST_HIDDEN]
        rows = {layer: [one.hidden_states[layer] for one in self._texts] for layer in layers}
        return {layer: pad_sequence(states, batch_first=True).to(self.device) for layer, states in rows.items()}

    def _refuse_own(self, certain: Tensor, index: int) -> None:
        """Reject a token that differs from the text's, unless it was certain, as a copied one is."""
        if not float(certain[index]) >= _CERTAIN:
            raise OwnTokensError(
                f"{type(self._drafter).__name__} draws its tokens itself, and returned others than the request's "
                "methods did. A replay needs q of the text's tokens: draw with the request's sample(), draw() or "
                "sample_candidates()."
            )

    def fail(self, message: str) -> None:
        """Raise a `PluginError` that names the drafter."""
        self._guard.fail(self._drafter, PluginError(message))
