"""A drafter's session along recorded texts: its requests, its answers, and the tokens committed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.validation import BAD_TOKEN, FAULTS, FINE, worst
from specdec_core.interface import (
    LAST_HIDDEN,
    BatchInfo,
    Drafter,
    GammaController,
    GammaSession,
    Outcome,
    PluginConfig,
    PluginError,
    PointMass,
    Proposal,
    SessionInfo,
)
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import inference_only
from specdec_core.offline.record.format import RecordedText
from specdec_core.offline.replay.forced import ForcedContext, ForcedSampler
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs
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


class _Watcher(GammaController):
    """Lets the drafter draft on, and notes what a controller would be told after each token."""

    def __init__(self, max_gamma: int) -> None:
        super().__init__(PluginConfig())
        self._max_gamma = max_gamma
        self.told: list[list[float]] = []

    @property
    def max_gamma(self) -> int:
        """The longest draft."""
        return self._max_gamma

    def open(self, batch: BatchInfo) -> GammaSession:
        """Begin a batch."""
        return _WatchingSession(self, batch.batch_size)


class _WatchingSession(GammaSession):
    uses_confidence = True

    def __init__(self, controller: _Watcher, batch_size: int) -> None:
        self._controller, self._batch_size = controller, batch_size

    def plan(self) -> Sequence[int]:
        self._controller.told = [[] for _ in range(self._batch_size)]
        return [self._controller.max_gamma] * self._batch_size

    def keep_drafting(self, confidence: Sequence[float]) -> Sequence[bool]:
        for row, value in zip(self._controller.told, confidence, strict=True):
            if not math.isnan(value):
                row.append(value)
        return [True] * len(confidence)


class TextSession:
    """A session of a drafter along a batch of recorded texts.

    Args:
        drafter: The drafter.
        sequences: The texts.
        max_gamma: The longest draft.
        sampling: The target's sampling settings.
        draft_sampling: Those of drafts.
        seed: Seed of the free draws, beyond the end of a text.
        live: Open inner loops as they are, which draw for themselves; those of hierarchies are forced otherwise.

    Raises:
        PluginError: The drafter fails. So do `ask` and `commit`.

    Attributes:
        proposer: Asks the drafter.
        sampler: Draws its tokens.
        device: Where drafts are verified.
        position: The position of each sequence in its text.
    """

    def __init__(
        self,
        drafter: Drafter,
        sequences: Sequence[ForcedText],
        max_gamma: int,
        sampling: SamplingSettings,
        draft_sampling: SamplingSettings | None,
        *,
        seed: int = 0,
        live: bool = False,
    ) -> None:
        self._drafter, self._sequences = drafter, sequences
        self._guard = PluginGuard(strict=True)
        self._greedy = sampling.greedy
        self.position = [0] * len(sequences)
        self._rows = [list(one.begin) for one in sequences]
        self._views = tuple(map(TokenView, self._rows))
        self._whole = [[*one.begin, *one.text.tokens.tolist()] for one in sequences]
        self._probabilities = [one.text.probabilities.astype(np.float64) for one in sequences]
        self._limits = [len(one.begin) + one.limit for one in sequences]
        capacity = max(self._limits)
        to_probs = LogitsToProbs(draft_sampling or sampling)
        generators = RowGenerators(
            [row_seed(row_seed(seed, one.text.number), one.text.sample) for one in sequences]
        )
        encoder = drafter.target.encoder_decoder
        info = SessionInfo(
            batch_size=len(sequences),
            vocab_size=drafter.target.vocab_size,
            capacity=capacity,
            max_gamma=min(max_gamma, capacity),
            device=drafter.target.device,
            sources=tuple(one.text.prompt for one in sequences) if encoder else None,
        )
        self.device = torch.device(info.device)
        make = LoopContext if live else partial(ForcedContext, texts=self._whole)
        context = make(to_probs, generators, self._guard)
        self.sampler = ForcedSampler(self._whole, info.device)
        self._watcher = _Watcher(max_gamma)
        room = tuple(one.limit for one in sequences)
        batch = BatchInfo(info.batch_size, max_gamma, room, self._greedy)
        self.proposer = context.open_drafting(drafter, self._watcher, info, batch, sampler=self.sampler)

    @inference_only
    def ask(self, budget: Sequence[int]) -> Proposal:
        """Ask for drafts of at most so many tokens for each sequence; return them on the target's device."""
        states = self._hidden_states() if self._drafter.hidden_layers else {}
        proposal, faults = self.proposer.propose(self._views, budget, states)
        code = FINE if faults is None else worst(faults.tolist(), proposal.lengths)
        # That q gives nothing to a token of the text is not a fault here: it would not have been drafted.
        if code not in (FINE, BAD_TOKEN):
            self.fail(FAULTS[code].format(last=self._drafter.target.vocab_size - 1))
        return proposal

    def commit(self, accepted: Sequence[int], count: Sequence[int], drafted: Sequence[int]) -> None:
        """Report that the next tokens of each text were committed.

        Args:
            accepted: How many of the draft tokens were accepted.
            count: How many tokens were committed, the recovered or bonus token included; 0 for texts that ended.
            drafted: The lengths of the drafts.
        """
        new = []
        for row, whole, more in zip(self._rows, self._whole, count, strict=True):
            new.append(tuple(whole[len(row) : len(row) + more]))
            row += new[-1]
        self.position = [at + len(one) for at, one in zip(self.position, new, strict=True)]
        ended = tuple(at >= len(one) for at, one in zip(self.position, self._sequences, strict=True))
        self.proposer.commit(Outcome(tuple(drafted), tuple(accepted), tuple(new), ended))
        self._guard.step += 1

    def teach(self) -> None:
        """Let a drafter that remembers learn the texts, without asking for more than a draft; then close."""
        try:
            drafted = self.ask([min(1, one.room(0)) for one in self._sequences]).lengths
            self.commit([0] * len(drafted), [len(one) for one in self._sequences], drafted)
        finally:
            self.close()

    def close(self) -> None:
        """Close the drafter's session."""
        self.proposer.close()

    def read(self, proposal: Proposal, *, drawn: bool = False) -> list[ForcedDraft]:
        """Return what acceptance of drafts that `ask` returned depends on, before their `commit`.

        Args:
            proposal: The drafts.
            drawn: Require that the request drew every token, as it does for autoregressive drafters.

        Raises:
            PluginError: The drafter drew tokens itself, or q is not a number.
        """
        if drawn and not self.proposer.request.drew(proposal):
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
        left = [len(one) - at for one, at in zip(self._sequences, self.position, strict=True)]
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
            heard = self._watcher.told[index][:count] if width else []
            told[: len(heard)] = heard
            own = None if least is None else least[index, :count].numpy()
            drafts.append(ForcedDraft(ratio, own, told, length))
        return drafts

    def _ahead(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts' next tokens `[B, K]` and the target's p of them; the draft's own and 1 beyond."""
        y, p = tokens.clone(), torch.ones(tokens.shape, dtype=torch.float64)
        for index, (row, whole) in enumerate(zip(self._rows, self._whole, strict=True)):
            known = whole[len(row) : len(row) + tokens.shape[1]]
            y[index, : len(known)] = torch.tensor(known, dtype=torch.long)
            if not self._greedy:
                at = self.position[index]
                p[index, : len(known)] = torch.from_numpy(self._probabilities[index][at : at + len(known)])
        return y, p

    def _least(self, proposal: Proposal) -> Tensor | None:
        """Return the smallest q(x) / p(x) of all tokens that p does not exclude, `[B, K]`; 1 beyond the texts.

        None where these are not known of all texts.
        """
        batch, width = proposal.tokens.shape
        known = [one.all_p for one in self._sequences]
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

    def _hidden_states(self) -> dict[int, Tensor]:
        """Return the hidden states of the sequences, as `DraftRequest` has them; none in the first step."""
        if not all(self.position):
            return {}
        rows = []
        for one, at in zip(self._sequences, self.position, strict=True):
            assert one.hidden is not None, "hidden states were not read"
            rows.append(one.hidden[min(at, len(one)) - 1])
        return {LAST_HIDDEN: torch.stack(rows).to(self.device), **self._layer_outputs}

    @cached_property
    def _layer_outputs(self) -> dict[int, Tensor]:
        """The outputs of layers at the tokens of all sequences, `[B, T, D]` each."""
        layers = [layer for layer in self._drafter.hidden_layers if layer != LAST_HIDDEN]
        rows = {layer: [one.hidden_states[layer] for one in self._sequences] for layer in layers}
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
