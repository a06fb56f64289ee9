"""Drafters with malformed proposals, or that fail in legal cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from specdec_core.interface import (
    LAST_HIDDEN,
    Dense,
    DraftRequest,
    DraftSession,
    PointMass,
    Proposal,
    SessionInfo,
)
from tests.testing.defects.healthy import Deterministic, Sampling, Stateless, WithBudget


class ReturnsThePrefix(Deterministic):
    """The proposal begins with the tokens that are committed already.

    Seen in the transformers library, whose candidate generators return prefix and candidates in one tensor.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [*tokens, *super().continuation(tokens, budget)]


class FixedLength(Deterministic):
    """Always drafts four tokens, whatever the budget says.

    Seen in vLLM, where `num_speculative_tokens` is a constant of the server.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return super().continuation(tokens, 4)


class PadsRows(Deterministic):
    """Every row gets as many tokens as the one with the largest budget.

    Seen in batched loops that pad (transformers #29769, whose author found that too costly).
    """

    def propose(self, request: DraftRequest) -> Proposal:
        return super().propose(WithBudget(request, budget=(max(request.budget),) * len(request.budget)))


class NegativePadding(Deterministic):
    """A draft that is shorter than the budget is filled up with -1, and the length counts it.

    Seen in batched code that marks positions without a token so.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        drafted = super().continuation(tokens, budget)
        return [*drafted[:-1], -1] if drafted else drafted


class PaddedVocabulary(Deterministic):
    """Drafts ids of the padded embedding, beyond the vocabulary.

    Seen where vocabularies differ by padding (llama.cpp accepts a difference of up to 128).
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [
            token + self.target.vocab_size if n == 1 else token
            for n, token in enumerate(super().continuation(tokens, budget))
        ]


class NeedsABudget(Deterministic):
    """Fails where no row may draft.

    Seen in steps that end on the last token, in which there is nothing to stack.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        pairs = zip(request.tokens, request.budget, strict=True)
        longest = max(len(self.continuation(row, n)) for row, n in pairs)
        assert longest > 0, "stack expects a non-empty TensorList"
        made = super().propose(request)
        return replace(made, lengths=request.budget)


class NeedsTwoTokens(Deterministic):
    """Looks at the last two tokens, where there may be one.

    Seen in look-up drafters, on prompts of one token.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [(tokens[-1] + tokens[-2] + n) % self.target.vocab_size for n in range(budget)]


class HalfIntegers(Deterministic):
    """Tokens are int32, as the tables they come from."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        return replace(made, tokens=made.tokens.int())


class ForgetsTheBatch(Deterministic):
    """Tokens are `[K]` where there is one row, and not `[1, K]`.

    Seen in drafters that were written for one sequence.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        return replace(made, tokens=made.tokens[0]) if len(request.budget) == 1 else made


class PromisesMore(Deterministic):
    """The lengths are the budgets, though fewer tokens were found."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(WithBudget(request, budget=tuple(min(n, 1) for n in request.budget)))
        return replace(made, lengths=request.budget)


class ReturnsNothing(Deterministic):
    """Returns None when it has nothing to propose.

    Seen in look-up drafters, and in a getter that logs and returns None.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        if not any(request.budget) or any(row[-1] in row[:-1] for row in request.tokens):
            return super().propose(request)
        return None  # type: ignore[return-value]


class OwnVocabulary(Sampling):
    """q is of the drafter's own vocabulary, which is smaller than the target's.

    Seen with drafters of another tokenizer (vLLM #7252, transformers #35029).
    """

    def hand_back(self, made: Proposal, logits: Tensor) -> Proposal:
        return replace(made, q=Dense(torch.softmax(logits, dim=-1)[..., :-1]))


class DraftsOn(Sampling):
    """Draws as many tokens as the budget allows, though a controller has stopped the draft.

    Seen where gamma is read once, and confidence is the drafter's own business.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        prefixes = [list(row) for row in request.tokens]
        for _ in range(max(request.budget)):
            for prefix, token in zip(prefixes, request.sample(self.all_logits(prefixes)).tolist(), strict=True):
                prefix.append(token)
        return request.proposal()


class ForksForEachToken(Stateless):
    """Draws each token with a request of its own, none of which knows that the draft was stopped.

    What composes drafters may do so: the sampler that was asked for the last token is not the one of the next.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        prefixes, made = [list(row) for row in request.tokens], []
        for position in range(max(request.budget)):
            one = request.fork([int(position < budget) for budget in request.budget])
            for prefix, token in zip(prefixes, one.sample(self.all_logits(prefixes)).tolist(), strict=True):
                prefix.append(token)
            made.append(one.proposal())
        if not made:
            return request.proposal()
        parts = [each.q.probabilities for each in made if isinstance(each.q, Dense)]
        q = Dense(torch.cat(parts, dim=1)) if parts else PointMass()
        return Proposal(torch.cat([each.tokens for each in made], dim=1), request.budget, q)


class GrowsATree(Deterministic):
    """Sets `parents`, as drafters of trees do."""

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        return replace(made, parents=torch.arange(-1, made.tokens.shape[1] - 1))


class OneRowOnly(Deterministic):
    """Refuses batches.

    Seen in the transformers library, where assisted generation raises for more than one sequence.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        if session.batch_size > 1:
            raise ValueError("assisted generation is only supported for batch_size = 1")
        return super().open(session)


class SharesOneBudget(Deterministic):
    """Every row drafts as many tokens as the one with the smallest budget that is not 0.

    Seen in batches that move in step.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        least = min((n for n in request.budget if n), default=0)
        return super().propose(WithBudget(request, budget=tuple(min(n, least) for n in request.budget)))


class ManyRowsAtMost(Deterministic):
    """Has buffers for eight rows."""

    positions = 8

    def open(self, session: SessionInfo) -> DraftSession:
        if session.batch_size > self.positions:
            raise IndexError(f"index {session.batch_size - 1} is out of bounds, with size {self.positions}")
        return super().open(session)


class SmallTable(Deterministic):
    """Has a table of 64 positions, whatever the capacity of the session.

    Seen in drafters with fewer positions than the target.
    """

    positions = tuple(range(64))

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        self.positions[len(tokens) - 1]
        return super().continuation(tokens, budget)


class UndeclaredNeed(Sampling):
    """Wants the target's hidden states, which its settings do not say."""

    hidden_layers = (LAST_HIDDEN,)


class FourHeads(Deterministic):
    """Has four heads, and fails where more tokens are asked for.

    Seen in multi-token prediction.
    """

    heads = (1, 2, 3, 4)

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [(tokens[-1] + self.heads[n]) % self.target.vocab_size for n in range(budget)]


class NeedsRoomForTwo(Deterministic):
    """Fails in sessions of one token a step."""

    def open(self, session: SessionInfo) -> DraftSession:
        if session.max_gamma < 2:
            raise ValueError("num_beams has to be an integer strictly greater than 1")
        return super().open(session)


class BudgetsOnward(Deterministic):
    """No row drafts more than those before it: the least budget so far is carried on."""

    def propose(self, request: DraftRequest) -> Proposal:
        least = accumulate((n or max(request.budget) for n in request.budget), min)
        budget = tuple(map(min, request.budget, least))
        return super().propose(WithBudget(request, budget=budget))
