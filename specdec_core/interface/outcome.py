"""The outcome of a step, which drafters learn from, and its report, which controllers and observers see."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

TokenOrigin: TypeAlias = Literal["accepted", "recovered", "bonus", "forced"]
"""Where a token comes from: an accepted draft token, a sample from the residual after a rejection, a sample from
the target after a draft that was accepted in full (or after none), or a constraint that allows no other token."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens with which both sequences begin."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):
        return most  # in most cases, and quick for long ones
    return next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


@dataclass(frozen=True)
class Outcome:
    """The result of one step: the only truth about which tokens were committed.

    Attributes:
        drafted: Number of draft tokens verified in each sequence; 0 where there was no draft, or that of another
            drafter.
        accepted: Number of them that were accepted.
        committed: Tokens appended to each sequence: the accepted ones, then the recovered or bonus token, then
            those that a constraint forces. Empty for a sequence that had already finished; shorter when an end of
            sequence came first.
        finished: Whether each sequence has ended. Inside a hierarchy, and with beams, it may resume after a
            `rollback`; the next commit says so.
        parents: For trees, the parent of each draft token of each sequence; None for lines.
        paths: For trees, the numbers of the accepted draft tokens of each sequence, from the root on.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    parents: tuple[tuple[int, ...], ...] | None = None
    paths: tuple[tuple[int, ...], ...] | None = None

    @property
    def depths(self) -> tuple[int, ...]:
        """The length of each sequence's draft; of a tree, that of its longest path."""
        return self.drafted if self.parents is None else tuple(map(_depth, self.parents))

    @property
    def rejected(self) -> tuple[bool, ...]:
        """Whether a draft token was rejected in each sequence."""
        if self.parents is None or self.paths is None:
            return tuple(map(operator.lt, self.accepted, self.drafted))
        pairs = zip(self.parents, self.paths, strict=True)
        return tuple((path[-1] if path else -1) in parents for parents, path in pairs)


def _depth(parents: Sequence[int]) -> int:
    """Return the length of the longest path of a tree."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


@dataclass(frozen=True)
class DraftTest:
    """The test of one draft token, with the numbers that decided it.

    Attributes:
        token: The draft token x.
        p: p(x). Greedy, p is one-hot; with another rule or lenience, it is the softmax of the scores. In a sampled
            tree, p is the residual after the siblings that were rejected before.
        q: q(x).
        r: The uniform random number; None for greedy decoding.
        lenience: l of appendix A.5.
        accepted: Whether the token was accepted. By Algorithm 1, where r * l * q < p.
        top: The most probable tokens under p or q, x among them: each with p and q.
    """

    token: int
    p: float
    q: float
    r: float | None
    lenience: float
    accepted: bool
    top: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class Verification:
    """How the draft of one sequence was verified in a step.

    Attributes:
        tests: The draft tokens that were tested, in this order: of a line, up to the first that was rejected.
        r: The random number that drew the token after them; None for greedy decoding.
        top: The most probable tokens of the distribution that it was drawn from: the residual after a rejection,
            else p. With another rule than Algorithm 1, p.
        algorithm_1: Whether Algorithm 1 decided, and no other rule.
    """

    tests: tuple[DraftTest, ...]
    r: float | None
    top: tuple[tuple[int, float], ...]
    algorithm_1: bool


@dataclass(frozen=True)
class StepReport:
    """One step as controllers and observers see it; per-sequence fields hold B entries.

    Block efficiency, acceptance rate and cost coefficient are all derived from these raw numbers.

    Attributes:
        step: Number of the target forward pass, from 0.
        asked: The budget of each sequence; zeros if the drafter was not asked.
        outcome: What was drafted, accepted and committed.
        draft_tokens: The draft of each sequence, rejected tokens included.
        draft_seconds: Wall time of the drafter's `propose` and `commit`.
        verify_seconds: Wall time of the target's forward pass and the acceptance, up to the wait for the device.
        step_seconds: Wall time of the whole step.
        deviation: Total variation from the target's distribution that lenience cost in each sequence. It is the
            sum over the verified positions of sum_x min(p / l, q) - min(p, q); 0 where l = 1. For greedy decoding,
            the number of accepted tokens that are not the argmax.
        forced: The positions in each sequence's `outcome.committed` that a constraint forced; nobody drafted them.
            Empty without a constraint.
        verification: How each sequence's draft was verified; None unless an observer asks for it.
    """

    step: int
    asked: tuple[int, ...]
    outcome: Outcome
    draft_tokens: tuple[tuple[int, ...], ...]
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    deviation: tuple[float, ...]
    forced: tuple[tuple[int, ...], ...] = ()
    verification: tuple[Verification, ...] | None = None

    @property
    def verified(self) -> tuple[int, ...]:
        """Number of positions verified in each sequence: up to the first rejection, or the sequence's end.

        At a position of a tree there may be several draft tokens, of which at most one is accepted.
        """
        rows = zip(self.outcome.rejected, self.outcome.accepted, self.outcome.committed, strict=True)
        return tuple([accepted + int(rejected and len(new) > accepted) for rejected, accepted, new in rows])

    @property
    def origins(self) -> tuple[tuple[TokenOrigin, ...], ...]:
        """Where each committed token of each sequence comes from."""
        origins = tuple(map(_origins, self.outcome.rejected, self.outcome.accepted, self.outcome.committed))
        if not any(self.forced):
            return origins
        forced: TokenOrigin = "forced"
        return tuple(
            tuple(forced if index in positions else origin for index, origin in enumerate(row))
            for row, positions in zip(origins, self.forced, strict=True)
        )

    @property
    def rejected_tokens(self) -> tuple[tuple[int, ...], ...]:
        """The draft tokens that were rejected in each sequence; several of a tree, at most one of a line."""
        outcome = self.outcome
        if outcome.parents is None or outcome.paths is None:
            pairs = zip(self.draft_tokens, outcome.accepted, strict=True)
            return tuple(draft[accepted : accepted + 1] for draft, accepted in pairs)
        last = [path[-1] if path else -1 for path in outcome.paths]
        trees = zip(self.draft_tokens, outcome.parents, last, strict=True)
        return tuple(
            tuple(token for token, parent in zip(draft, parents, strict=True) if parent == end)
            for draft, parents, end in trees
        )

    @property
    def draft_calls(self) -> int:
        """Depth of the draft: the length of the longest one; 1 if the drafter was asked and proposed nothing."""
        return max(*self.outcome.depths, int(any(self.asked)))


def _origins(rejected: bool, accepted: int, committed: tuple[int, ...]) -> tuple[TokenOrigin, ...]:
    last: TokenOrigin = "recovered" if rejected else "bonus"
    kept: TokenOrigin = "accepted"
    return (kept,) * accepted + (last,) * (len(committed) - accepted)
