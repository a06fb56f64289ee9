"""Any candidate generator of transformers, such as its prompt lookup, as a drafter.

A generator returns tokens and, some of them, logits, without saying whether the tokens were drawn from these.
Where they were not, taking softmax(logits) as q would change the distribution of the text. A point mass is always
right: the draft does not depend on the random numbers that verify it, and given any draft token x, accepting it
with probability p(x), or else sampling from p without x, gives p. It only accepts less than the true q would.

So q is a point mass, except for the generators of transformers that draw from the logits that they return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    CandidateGenerator,
    EarlyExitCandidateGenerator,
)

from specdec_core.interface import (
    Dense,
    Drafter,
    DraftRequest,
    DraftSession,
    Outcome,
    PluginConfig,
    PluginError,
    Proposal,
    SessionInfo,
    TargetInfo,
)

_DRAW_IF_ASKED = (AssistedCandidateGenerator, EarlyExitCandidateGenerator)
"""Generators whose tokens are drawn from the scores they return where their generation config has `do_sample`."""
_LIMITS = ("num_assistant_tokens", "num_output_tokens")
"""Attributes in which the generators of transformers keep the number of tokens that they draft."""


class CandidateDrafter(Drafter):
    """Drafts with a candidate generator of transformers, one for each sequence.

    What a generator draws comes from torch's global random generator, so a seed of `generate` does not repeat it;
    `torch.manual_seed` does.

    Args:
        make: Takes the first tokens of a sequence, `[1, T]` int64, and returns its generator: a
            `transformers.generation.candidate_generator.CandidateGenerator`, or an object with its methods.
        vocab_size: V, the number of logits of the target.
        draws_from_logits: Whether tokens are drawn from softmax of the logits that are returned with them, which
            is then q. By default it is known for the generators of transformers, and False for all others. With
            True for a generator that returns the argmax, the text would not follow the target's distribution.
    """

    def __init__(
        self,
        make: Callable[[Tensor], CandidateGenerator],
        vocab_size: int,
        *,
        draws_from_logits: bool | None = None,
    ) -> None:
        super().__init__(PluginConfig(), TargetInfo(vocab_size))
        self.make = make
        self.draws_from_logits = draws_from_logits

    def open(self, session: SessionInfo) -> DraftSession:
        """Start a batch; a sequence's generator is made when its first draft is asked for."""
        return _CandidateSession(self, session)


class _CandidateSession(DraftSession):
    def __init__(self, drafter: CandidateDrafter, info: SessionInfo) -> None:
        self._drafter, self._info = drafter, info
        self._generators: list[CandidateGenerator | None] = [None] * info.batch_size
        self._texts: list[list[int] | None] = [None] * info.batch_size  # of the sequences with a draft

    def propose(self, request: DraftRequest) -> Proposal:
        drafts, logits = [], []
        for row, (tokens, budget) in enumerate(zip(request.tokens, request.budget, strict=True)):
            self._texts[row] = list(tokens) if budget else None
            draft, scores = self._candidates(row, list(tokens), budget) if budget else ([], None)
            drafts.append(draft)
            logits.append(scores)
        proposal = Proposal.from_rows(drafts)
        if all(scores is None for scores in logits):
            return proposal
        q = torch.zeros(*proposal.tokens.shape, self._info.vocab_size)
        q.scatter_(2, proposal.tokens[..., None], 1.0)
        for row, scores in enumerate(logits):
            if scores is not None:
                q[row, : len(scores)] = torch.softmax(scores.float().cpu(), dim=-1)
        return Proposal(proposal.tokens, proposal.lengths, Dense(q))

    def _candidates(self, row: int, tokens: list[int], budget: int) -> tuple[list[int], Tensor | None]:
        """Return the draft of a sequence, and the logits `[n, V]` that it was drawn from, or None."""
        ids = torch.tensor([tokens], device=self._info.device)
        generator = self._generators[row]
        if generator is None:
            generator = self._generators[row] = self._made(ids)
        with _at_most(generator, budget):
            found, logits = generator.get_candidates(ids)
        if found.ndim != 2 or found.shape[0] != 1 or found[0, : len(tokens)].tolist() != tokens:
            raise PluginError(
                f"{type(generator).__name__}.get_candidates returned ids of shape {list(found.shape)}; it must "
                f"return [1, T + n]: the {len(tokens)} tokens that it was given, and the candidates after them."
            )
        draft = found[0, len(tokens) :][:budget].tolist()
        if logits is None or not draft or not self._drawn(generator):
            return draft, None
        expected = (1, len(found[0]) - len(tokens), self._info.vocab_size)
        if tuple(logits.shape) != expected:
            raise PluginError(
                f"{type(generator).__name__}.get_candidates returned logits of shape {list(logits.shape)}; "
                f"expected [1, n, V], which is {list(expected)} here."
            )
        return draft, logits[0, : len(draft)]

    def _made(self, ids: Tensor) -> CandidateGenerator:
        generator = self._drafter.make(ids)
        if not callable(getattr(generator, "get_candidates", None)):
            raise PluginError(
                f"make() returned an object of type {type(generator).__name__}; it must return a "
                "CandidateGenerator, which has get_candidates()."
            )
        if getattr(generator, "requires_model_outputs", False):
            raise PluginError(
                f"{type(generator).__name__} needs the target's hidden states of all layers, or its keys and "
                "values, after each step (requires_model_outputs), which a drafter is not given. Use a generator "
                "that needs the tokens only."
            )
        return generator

    def _drawn(self, generator: CandidateGenerator) -> bool:
        """Return whether the generator draws its tokens from the logits that it returns."""
        said = self._drafter.draws_from_logits
        if said is not None:
            return said
        return type(generator) in _DRAW_IF_ASKED and bool(generator.generation_config.do_sample)

    def commit(self, outcome: Outcome) -> None:
        for row, (text, drafted) in enumerate(zip(self._texts, outcome.drafted, strict=True)):
            generator, self._texts[row] = self._generators[row], None
            if generator is None or text is None or not any(outcome.drafted) or not _learns(generator):
                continue
            ids = torch.tensor([[*text, *outcome.committed[row]]], device=self._info.device)
            # Generators of transformers read the number of scores alone; one that reads their values finds NaN.
            scores = torch.full((1, 1, 1), torch.nan).expand(1, drafted + 1, self._info.vocab_size)
            generator.update_candidate_strategy(ids, scores, outcome.accepted[row])

    def rollback(self, lengths: Sequence[int]) -> None:  # noqa: ARG002  (it cannot)
        raise PluginError(
            "a candidate generator of transformers cannot take back tokens, as it must inside a hierarchy and "
            "with beams; choose another drafter there."
        )

    def close(self) -> None:
        self._generators = [None] * len(self._generators)


def _learns(generator: CandidateGenerator) -> bool:
    """Return whether a generator is to be told what was accepted; that of the base class may raise."""
    own = getattr(type(generator), "update_candidate_strategy", None)
    return own not in (None, CandidateGenerator.update_candidate_strategy)


@contextmanager
def _at_most(generator: Any, budget: int) -> Iterator[None]:
    """Have a generator draft no more than will be verified; its own number is another for the next step."""
    own = {name: value for name in _LIMITS if (value := getattr(generator, name, None)) is not None}
    for name, value in own.items():
        setattr(generator, name, min(int(value), budget))
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(generator, name, value)
