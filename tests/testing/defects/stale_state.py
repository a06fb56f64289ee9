"""Drafters whose state differs from the committed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_core.interface import DraftRequest, DraftSession, Outcome, Proposal, SessionInfo
from tests.testing.defects.healthy import Cached, CachedSession, Deterministic


class KeepsRejected(Cached):
    """Leaves its rejected tokens in the cache, and only appends what came instead.

    Seen wherever the target crops its cache and the drafter is forgotten.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _KeepsRejectedSession(self, session.batch_size)


class _KeepsRejectedSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        self.rows[index] += outcome.committed[index][-1:]


class CropsOneTooMany(Cached):
    """Takes one accepted token too many out of the cache.

    Seen in caches that are cropped by the length of the text, the last token of which was not read yet.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _CropsOneTooManySession(self, session.batch_size)


class _CropsOneTooManySession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        row, accepted = self.rows[index], outcome.accepted[index] if any(outcome.drafted) else 0
        del row[self.begin[index] + max(accepted - 1, 0) :]
        row += outcome.committed[index][accepted:]


class ForgetsTheBonus(Cached):
    """Where all its tokens were accepted, leaves it at them, and never reads the bonus token.

    Seen in loops that treat "all accepted" as a case of its own.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _ForgetsTheBonusSession(self, session.batch_size)


class _ForgetsTheBonusSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        super().keep(index, outcome)
        drafted = outcome.drafted[index]
        if any(outcome.drafted) and drafted and outcome.accepted[index] == drafted < len(outcome.committed[index]):
            self.rows[index].pop()


class HearsOnlyOfItsOwn(Cached):
    """Ignores what was committed in a step in which another's draft was verified, or none.

    Seen where drafters are chained; llama.cpp tells those that were not used, too.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _HearsOnlyOfItsOwnSession(self, session.batch_size)


class _HearsOnlyOfItsOwnSession(CachedSession):
    def commit(self, outcome: Outcome) -> None:
        if any(outcome.drafted):
            super().commit(outcome)


class TakesOthersForItsOwn(Cached):
    """Keeps as many of its own tokens as came, whether or not it was its draft that was verified (`used`)."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _TakesOthersForItsOwnSession(self, session.batch_size)


class _TakesOthersForItsOwnSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        row, begin = self.rows[index], self.begin[index]
        accepted = min(max(len(outcome.committed[index]) - 1, 0), len(row) - begin)
        del row[begin + accepted :]
        row += outcome.committed[index][accepted:]


class ExpectsABonus(Cached):
    """Fails where an end of sequence inside the draft cuts what is committed short.

    Seen in bookkeeping that counts on `accepted + 1` tokens in every step.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _ExpectsABonusSession(self, session.batch_size)


class _ExpectsABonusSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        accepted, new = outcome.accepted[index], outcome.committed[index]
        if new:
            new[accepted]  # the recovered or bonus token
        super().keep(index, outcome)


class ExpectsEveryRow(Cached):
    """Fails where a row has ended, and nothing is committed to it any more."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _ExpectsEveryRowSession(self, session.batch_size)


class _ExpectsEveryRowSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        assert outcome.committed[index][-1] >= 0
        super().keep(index, outcome)


class RollsBackNothing(Cached):
    """Has a `rollback`, since a hierarchy asks for one, and does nothing in it."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _RollsBackNothingSession(self, session.batch_size)


class _RollsBackNothingSession(CachedSession):
    def rollback(self, lengths: Sequence[int]) -> None:
        return


class RemembersThePrompt(Deterministic):
    """Looks up what follows in an index that is built at the first request, and is never brought up to date.

    Seen in look-up drafters that index the prompt alone without saying so.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _RemembersThePromptSession(self)


class _RemembersThePromptSession(DraftSession):
    def __init__(self, drafter: RemembersThePrompt) -> None:
        self.drafter = drafter
        self.texts: list[tuple[int, ...]] | None = None

    def propose(self, request: DraftRequest) -> Proposal:
        if self.texts is None:
            self.texts = [tuple(row) for row in request.tokens]
        pairs = zip(self.texts, request.budget, strict=True)
        return Proposal.from_rows([self.drafter.continuation(text, budget) for text, budget in pairs])


class CropsAllRowsAlike(Cached):
    """Crops the caches of all rows to the longest accepted prefix in the batch.

    Seen in the transformers library, whose caches are cropped by one length for the whole batch.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _CropsAllRowsAlikeSession(self, session.batch_size)


class _CropsAllRowsAlikeSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        row, most = self.rows[index], max(outcome.accepted) if any(outcome.drafted) else 0
        del row[self.begin[index] + most :]
        row += outcome.committed[index][outcome.accepted[index] if any(outcome.drafted) else 0 :]


class CountsWhatCame(Cached):
    """Takes all but the last committed token for its own draft, also in rows that another drafter served.

    Seen in chains of drafters that share a batch row by row.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _CountsWhatCameSession(self, session.batch_size)


class _CountsWhatCameSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        row, new = self.rows[index], outcome.committed[index]
        own = min(max(len(new) - 1, 0), len(row) - self.begin[index]) if any(outcome.drafted) else 0
        del row[self.begin[index] + own :]
        row += new[own:]


class LeavesWaitingRows(Cached):
    """Draws for all rows, and takes the tokens back only in those that had a budget.

    Seen in loops over a batch of which some rows wait.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _LeavesWaitingRowsSession(self, session.batch_size)


class _LeavesWaitingRowsSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        if any(outcome.drafted) and not outcome.drafted[index]:
            self.rows[index] += outcome.committed[index]
        else:
            super().keep(index, outcome)


class NeedsAFirstDraft(Cached):
    """Makes its cache at the first request, and fails where a step was committed before."""

    def open(self, session: SessionInfo) -> DraftSession:
        return _NeedsAFirstDraftSession(self, session.batch_size)


class _NeedsAFirstDraftSession(CachedSession):
    read = False

    def propose(self, request: DraftRequest) -> Proposal:
        self.read = True
        return super().propose(request)

    def commit(self, outcome: Outcome) -> None:
        if not self.read:
            raise AttributeError("'NoneType' object has no attribute 'crop'")
        super().commit(outcome)


class RunsFull(Cached):
    """Has a buffer for 24 tokens a row, and drops without a word what does not fit.

    Seen in preallocated caches without a check.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _RunsFullSession(self, session.batch_size)


class _RunsFullSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        super().keep(index, outcome)
        del self.rows[index][24:]


class ShortensItsDrafts(Deterministic):
    """Has a rule of its own for the length of drafts, shorter after each rejection, where a budget was asked for.

    Seen in the assisted generation of transformers, where the adaptive rule lives inside the drafter.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _ShortensItsDraftsSession(self)


class _ShortensItsDraftsSession(DraftSession):
    def __init__(self, drafter: ShortensItsDrafts) -> None:
        self.drafter = drafter
        self.rejections = 0

    def propose(self, request: DraftRequest) -> Proposal:
        budgets = [max(budget - self.rejections, min(budget, 1)) for budget in request.budget]
        pairs = zip(request.tokens, budgets, strict=True)
        return Proposal.from_rows([self.drafter.continuation(row, budget) for row, budget in pairs])

    def commit(self, outcome: Outcome) -> None:
        self.rejections += any(map(int.__lt__, outcome.accepted, outcome.drafted))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Keep the count: tokens are not what this remembers."""


class UndoesTwoCommits(Cached):
    """Can roll back its last two commits only.

    Seen with ring buffers of cache snapshots.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _UndoesTwoCommitsSession(self, session.batch_size)


class _UndoesTwoCommitsSession(CachedSession):
    marks: tuple[list[int], ...] = ()

    def commit(self, outcome: Outcome) -> None:
        super().commit(outcome)
        self.marks = (*self.marks, list(self.begin))[-3:]

    def rollback(self, lengths: Sequence[int]) -> None:
        least = self.marks[0] if len(self.marks) == 3 else [0] * len(lengths)
        super().rollback(list(map(max, lengths, least)))
        self.marks = ()


class LetsEndedRowsGo(Cached):
    """Drops what it has read of a row that ended, which a rollback may bring back.

    Seen where slots of a batch are freed as soon as a sequence ends.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        return _LetsEndedRowsGoSession(self, session.batch_size)


class _LetsEndedRowsGoSession(CachedSession):
    def keep(self, index: int, outcome: Outcome) -> None:
        super().keep(index, outcome)
        if outcome.finished[index]:
            self.rows[index] = [0] * len(self.rows[index])
