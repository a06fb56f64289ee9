"""Drafters with one planted defect each, and the checks that must catch it."""

import os
import random
import signal
import threading
import time
from dataclasses import replace
from typing import ClassVar

import torch

from specdec_core.interface import LAST_HIDDEN, Dense, DraftSession, PointMass, Proposal
from tests.testing.healthy import (
    Branching,
    Cached,
    CachedSession,
    Deterministic,
    Hidden,
    Remembers,
    Sampling,
    SizeConfig,
    Stateless,
    WithBudget,
    context,
)

DEFECTS: list[tuple[type, str]] = []
"""Each defect with a check that must catch it."""


def caught_by(*checks):
    def planted(defect):
        DEFECTS.extend((defect, check) for check in checks)
        return defect

    return planted


# q is not what the tokens were sampled from.


@caught_by("draft_sampled_from_q", "lossless_top_k")
class UnwarpedQ(Sampling):
    """q is the softmax of the raw logits (transformers #32867, #47932; vLLM #40149, #41044)."""

    def hand_back(self, made, logits):
        return replace(made, q=Dense(torch.softmax(logits, dim=-1)))


@caught_by("budgets_respected", "greedy_equals_baseline")
class RawLogits(Sampling):
    """q holds logits, as the candidate generators of transformers return them."""

    def hand_back(self, made, logits):
        return replace(made, q=Dense(logits))


@caught_by("draft_sampled_from_q")
class OnePositionOff(Sampling):
    """Each token comes with the q of the token before it."""

    def hand_back(self, made, logits):
        return (
            made if isinstance(made.q, PointMass) else replace(made, q=Dense(made.q.probabilities.roll(1, dims=1)))
        )


@caught_by("budgets_respected")
class ZeroAtTheDraft(Sampling):
    """q was cut to its two most probable tokens after the draw, and gives 0 to other tokens that were drawn."""

    def hand_back(self, made, logits):
        probabilities = torch.softmax(logits, dim=-1)
        kept = torch.where(probabilities >= probabilities.topk(2, dim=-1).values[..., -1:], probabilities, 0)
        return replace(made, q=Dense(kept / kept.sum(dim=-1, keepdim=True)))


@caught_by("draft_sampled_from_q", "lossless")
class WithholdsEndOfSequence(Sampling):
    """Cuts a draft in front of a drawn end of sequence."""

    def hand_back(self, made, logits):
        rows = [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths, strict=True)]
        ends = self.target.eos_ids
        return replace(
            made, lengths=tuple(next((n for n, x in enumerate(row) if x in ends), len(row)) for row in rows)
        )


@caught_by("lossless_early_stop")
class LeavesOutTheUnsure(Sampling):
    """Leaves out the token at which a controller stopped the draft, for want of confidence in it."""

    def propose(self, request):
        made = super().propose(request)
        rows = zip(made.lengths, request.budget, strict=True)
        return replace(made, lengths=tuple(n - (0 < n < budget) for n, budget in rows))


@caught_by("greedy_equals_baseline")
class ExpectsProbabilities(Sampling):
    """Reads the probabilities of its own q, and fails when q is a point mass."""

    calls = 0

    def hand_back(self, made, logits):
        self.calls += 1
        if self.calls > 4:
            made.q.probabilities.amax()
        return made


@caught_by("draft_sampled_from_q", "inside_hierarchy")
class CherryPicks(Sampling):
    """Draws two drafts for each row, and hands back the one that it finds more probable."""

    def propose(self, request):
        first, second = (super(CherryPicks, self).propose(request.fork(request.budget)) for _ in range(2))
        if not (isinstance(first.q, Dense) and isinstance(second.q, Dense) and first.lengths == second.lengths):
            return first

        def probability(made):
            return made.q.probabilities.gather(2, made.tokens[..., None])[..., 0].prod(dim=1)

        better = (probability(second) > probability(first))[:, None]
        q = torch.where(better[..., None], second.q.probabilities, first.q.probabilities)
        return replace(first, tokens=torch.where(better, second.tokens, first.tokens), q=Dense(q))


def surer(made, rows):
    """Return a proposal whose q is mixed with what was drawn, in some rows."""
    if not isinstance(made.q, Dense) or not any(rows):
        return made
    q = made.q.probabilities
    mixed = (q + torch.nn.functional.one_hot(made.tokens, q.shape[-1])) / 2
    return replace(made, q=Dense(torch.where(torch.tensor(rows)[:, None, None], mixed, q)))


@caught_by("draft_sampled_from_q")
class SureOfLongTexts(Sampling):
    """Behind more than ten tokens of text, q says that what was drawn was likelier than it was."""

    def propose(self, request):
        return surer(super().propose(request), [len(row) > 10 for row in request.tokens])


@caught_by("draft_sampled_from_q", "lossless_top_k")
class SureBehindAnEncoder(Sampling):
    """With an encoder and where tokens are cut off, q says that what was drawn was likelier than it was."""

    def hand_back(self, made, logits):
        cut = isinstance(made.q, Dense) and bool((made.q.probabilities == 0).any())
        return surer(made, [cut and self.target.encoder_decoder] * len(made.lengths))


# Proposals are malformed, or legal requests fail.


@caught_by("budgets_respected")
class ReturnsThePrefix(Deterministic):
    """The proposal begins with the committed tokens, as in the candidate generators of transformers."""

    def continuation(self, tokens, budget):
        return [*tokens, *super().continuation(tokens, budget)]


@caught_by("budgets_respected")
class PadsRows(Deterministic):
    """Every row gets as many tokens as the one with the largest budget."""

    def propose(self, request):
        return super().propose(WithBudget(request, budget=(max(request.budget),) * len(request.budget)))


@caught_by("budgets_respected")
class NeedsTwoTokens(Deterministic):
    """Looks at the last two tokens, where there may be one."""

    def continuation(self, tokens, budget):
        return [(tokens[-1] + tokens[-2] + n) % self.target.vocab_size for n in range(budget)]


@caught_by("budgets_respected")
class ForgetsTheBatch(Deterministic):
    """Tokens are `[K]` where there is one row, and not `[1, K]`."""

    def propose(self, request):
        made = super().propose(request)
        return replace(made, tokens=made.tokens[0]) if len(request.budget) == 1 else made


@caught_by("budgets_respected")
class ManyRowsAtMost(Deterministic):
    """Has buffers for eight rows."""

    def open(self, session):
        if session.batch_size > 8:
            raise IndexError("index 8 is out of bounds")
        return super().open(session)


@caught_by("budgets_respected")
class GrowsATree(Deterministic):
    """Sets `parents` where a line was asked for."""

    def propose(self, request):
        made = super().propose(request)
        return replace(made, parents=torch.arange(-1, made.tokens.shape[1] - 1).expand(made.tokens.shape))


@caught_by("early_stop")
class DraftsOn(Sampling):
    """Draws as many tokens as the budget allows, though a controller has stopped the draft."""

    def propose(self, request):
        prefixes = [list(row) for row in request.tokens]
        for _ in range(max(request.budget)):
            for prefix, token in zip(prefixes, request.sample(self.all_logits(prefixes)).tolist(), strict=True):
                prefix.append(token)
        return request.proposal()


@caught_by("full_capacity")
class SmallTable(Deterministic):
    """Has a table of 64 positions, whatever the capacity of the session."""

    positions = tuple(range(64))

    def continuation(self, tokens, budget):
        self.positions[len(tokens) - 1]
        return super().continuation(tokens, budget)


@caught_by("hidden_states_declared")
class UndeclaredNeed(Sampling):
    """Wants the target's hidden states, which its settings do not say."""

    hidden_layers = (LAST_HIDDEN,)


@caught_by("long_drafts")
class FourHeads(Deterministic):
    """Has four heads, and fails where more tokens are asked for."""

    def continuation(self, tokens, budget):
        return [(tokens[-1] + (1, 2, 3, 4)[n]) % self.target.vocab_size for n in range(budget)]


@caught_by("long_drafts")
class NeedsRoomForTwo(Deterministic):
    """Fails in sessions of one token a step."""

    def open(self, session):
        if session.max_gamma < 2:
            raise ValueError("num_beams has to be an integer strictly greater than 1")
        return super().open(session)


# State differs from the committed tokens.


@caught_by("accepted")
class KeepsRejected(Cached):
    """Leaves its rejected tokens in the cache, and only appends what came instead."""

    def keep(self, row, begin, index, outcome):
        row += outcome.committed[index][-1:]


@caught_by("accepted")
class ForgetsTheBonus(Cached):
    """Where all its tokens were accepted, leaves it at them, and never reads the bonus token."""

    def keep(self, row, begin, index, outcome):
        super().keep(row, begin, index, outcome)
        if 0 < outcome.drafted[index] == outcome.accepted[index] < len(outcome.committed[index]):
            row.pop()


@caught_by("accepted")
class CropsAllRowsAlike(Cached):
    """Crops the caches of all rows to the longest accepted prefix in the batch, as transformers does."""

    def keep(self, row, begin, index, outcome):
        row[begin + max(outcome.accepted) :] = outcome.committed[index][outcome.accepted[index] :]


@caught_by("others_drafts")
class HearsOnlyOfItsOwn(Cached):
    """Ignores what was committed in a step in which another's draft was verified, or none."""

    def commit(self, session, outcome):
        if any(outcome.drafted):
            super().commit(session, outcome)


@caught_by("others_drafts")
class CountsWhatCame(Cached):
    """Takes all but the last committed token for its own draft, also in rows that another drafter served."""

    def keep(self, row, begin, index, outcome):
        new = outcome.committed[index]
        own = min(max(len(new) - 1, 0), len(row) - begin) if any(outcome.drafted) else 0
        row[begin + own :] = new[own:]


@caught_by("many_steps")
class NeedsAFirstDraft(Cached):
    """Makes its cache at the first request, and fails where a step was committed before."""

    def open(self, session):
        made = super().open(session)
        commit = made.commit
        made.commit = lambda outcome: commit(outcome) if any(made.rows) else made.cache.crop()
        return made


@caught_by("waiting_rows")
class LeavesWaitingRows(Cached):
    """Draws for all rows, and takes the tokens back only in those that had a budget."""

    def keep(self, row, begin, index, outcome):
        waits = any(outcome.drafted) and not outcome.drafted[index]
        super().keep(row, len(row) if waits else begin, index, outcome)


@caught_by("eos_inside_draft")
class ExpectsABonus(Cached):
    """Fails where an end of sequence inside the draft cuts what is committed short."""

    def keep(self, row, begin, index, outcome):
        if outcome.committed[index]:
            outcome.committed[index][outcome.accepted[index]]  # the recovered or bonus token
        super().keep(row, begin, index, outcome)


@caught_by("rows_finished", "inside_hierarchy")
class ExpectsEveryRow(Cached):
    """Fails where a row has ended, and nothing is committed to it any more."""

    def keep(self, row, begin, index, outcome):
        assert outcome.committed[index][-1] >= 0
        super().keep(row, begin, index, outcome)


@caught_by("many_steps")
class RunsFull(Cached):
    """Has a buffer for 24 tokens a row, and drops without a word what does not fit."""

    def keep(self, row, begin, index, outcome):
        super().keep(row, begin, index, outcome)
        del row[24:]


@caught_by("rollback")
class RollsBackNothing(Cached):
    """Does nothing in `rollback`."""

    def rollback(self, session, lengths):
        return


@caught_by("rollback")
class CatchesUp(Cached):
    """Reads as many tokens as are missing at its next draft, whatever was taken back meanwhile."""

    def open(self, session):
        return CatchingUp(self, session.batch_size)

    def keep(self, row, begin, index, outcome):
        del row[begin:]

    def rollback(self, session, lengths):
        return


class CatchingUp(CachedSession):
    def propose(self, request):
        for row, tokens in zip(self.rows, request.tokens, strict=True):
            read = row[: len(tokens) - 1]
            row[:] = [*read, *tokens[len(read) :]]
        return super().propose(request)


@caught_by("rollback")
class LetsEndedRowsGo(Cached):
    """Drops what it has read of a row that ended, which a rollback may bring back."""

    def keep(self, row, begin, index, outcome):
        super().keep(row, begin, index, outcome)
        if outcome.finished[index]:
            row[:] = [0] * len(row)


# State is shared, or leaks.


@caught_by("rows_independent")
class OneStateForAllRows(Cached):
    """All rows share the cache of the first."""

    def open(self, session):
        made = super().open(session)
        made.rows = [made.rows[0]] * session.batch_size
        return made


@caught_by("sessions_independent", "same_seed_same_draft")
class OneStateForAllSessions(Cached):
    """The cache is the drafter's, and not the session's: a second batch reads on in that of the first."""

    rows: ClassVar = {}

    def open(self, session):
        made = super().open(session)
        made.rows = self.rows.setdefault(session.batch_size, made.rows)
        return made


@caught_by("sessions_freed")
class NeverFrees(Cached):
    """Keeps every session for good, so that memory grows with every batch."""

    def open(self, session):
        self.sessions = [*getattr(self, "sessions", []), super().open(session)]
        return self.sessions[-1]


class ClosesItsCache(CachedSession):
    """Frees what it made at the first request."""

    def propose(self, request):
        self.cache = list(self.rows)
        return super().propose(request)

    def close(self):
        del self.cache


@caught_by("close_any_time")
class FailsToClose(Cached):
    """Fails to close where there was no request."""

    def open(self, session):
        return ClosesItsCache(self, session.batch_size)


@caught_by("earlier_sessions_forgotten")
class SaysNothing(Remembers):
    """Remembers, and does not declare it."""

    def __init__(self, target):
        super().__init__(target)
        self.remembers = False


@caught_by("reset_forgets")
class ForgetsNothing(Remembers):
    """Declares `remembers`, and leaves `reset` as it is inherited."""

    def reset(self):
        pass


@caught_by("reset_forgets")
class OneThread(Remembers):
    """Works in the thread that it was made in, as a connection to a database does."""

    def __init__(self, target):
        super().__init__(target)
        self.thread = threading.get_ident()

    def open(self, session):
        if threading.get_ident() != self.thread:
            raise RuntimeError("objects created in a thread can only be used in that same thread")
        return super().open(session)


@caught_by("snapshot_kept")
class ReadsOn(Remembers):
    """Its sessions look at what is known now, not at what was known when they were opened."""

    def open(self, session):
        made = super().open(session)
        propose = made.propose

        def now(request):
            made.known = self.known
            return propose(request)

        made.propose = now
        return made


# Trees.


@caught_by("trees_respected")
class IgnoresTheDepth(Deterministic):
    """Fills the budget of a tree with one path, however long a path may be."""

    drafts_trees = True

    def propose(self, request):
        made = super().propose(request)
        if request.tree is None:
            return made
        rows = [[row[:length]] for row, length in zip(made.tokens.tolist(), made.lengths, strict=True)]
        return Proposal.from_continuations(rows, request.budget, request.budget)


@caught_by("draft_sampled_from_q")
class OneQForAllSiblings(Branching):
    """States for each node the q of its eldest sibling, though siblings were drawn without replacement."""

    def propose(self, request):
        made = super().propose(request)
        if request.tree is None or made.parents is None or not isinstance(made.q, Dense):
            return made
        q = made.q.probabilities.clone()
        for row, parents in enumerate(made.parents.tolist()):
            for node, parent in enumerate(parents):
                q[row, node] = q[row, parents.index(parent)]
        return replace(made, tokens=made.tokens.clone(), q=Dense(q))


@caught_by("lossless_trees")
class PrunesTheUnlikely(Branching):
    """Withholds a tree whose first token has a small q."""

    def propose(self, request):
        made = super().propose(request)
        if request.tree is None or not isinstance(made.q, Dense):
            return made
        first = made.q.probabilities[:, 0].gather(1, made.tokens[:, :1])[:, 0].tolist()
        return replace(made, lengths=tuple(0 if q < 0.4 else n for q, n in zip(first, made.lengths, strict=True)))


class FirstNodes(DraftSession):
    """Takes the first tokens of a draft for the accepted ones."""

    def __init__(self, drafter, batch_size):
        self.drafter, self.drafted = drafter, [[] for _ in range(batch_size)]
        self.rows = [[] for _ in range(batch_size)]

    def propose(self, request):
        for row, tokens in zip(self.rows, request.tokens, strict=True):
            row += tokens[len(row) :]  # what it takes to be new
        made = self.drafter.draft(self.rows, request)
        self.drafted = made.tokens.tolist()
        return made

    def commit(self, outcome):
        for row, drafted, accepted in zip(self.rows, self.drafted, outcome.accepted, strict=True):
            row += drafted[:accepted] if any(outcome.drafted) and row else []

    def rollback(self, lengths):
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]


@caught_by("accepted", "many_steps")
class KeepsTheFirstNodes(Branching):
    """Takes the first tokens of a tree for the accepted ones, as they are in a line."""

    def open(self, session):
        return FirstNodes(self, session.batch_size)


# Declarations that a replay relies on, and drafters that are of no use.


@caught_by("replay_equals_live")
class BetsOnTheBudget(Deterministic):
    """Drafts other tokens where more are asked for."""

    def continuation(self, tokens, budget):
        return [(tokens[-1] + budget + n) % self.target.vocab_size for n in range(budget)]


@caught_by("autoregressive_as_declared")
class SeesNoDraft(Sampling):
    """Its q depends on where the draft began, as that of heads does."""

    autoregressive = True

    def propose(self, request):
        indices = [context(row) for row in request.tokens]
        while request.wants_more():
            request.sample(self.table[indices])
            indices = [(index + 1) % len(self.table) for index in indices]
        return request.proposal()


@caught_by("autoregressive_as_declared")
class TakesNothingFromTheRequest(Deterministic):
    """Its tokens are its own, so that it cannot be asked along a text."""

    autoregressive = True


@caught_by("drafts_tokens")
class NeverDrafts(Deterministic):
    """Never proposes anything, so that every check of exactness passes."""

    def continuation(self, tokens, budget):
        return []


# Inputs or global state change, or a draft depends on what it must not depend on.


@caught_by("inputs_unchanged")
class WritesIntoTheRequest(Deterministic):
    """Appends its draft to the committed tokens of the request."""

    def continuation(self, tokens, budget):
        for _ in range(budget):
            tokens.append((tokens[-1] + 1) % self.target.vocab_size)
        return tokens[len(tokens) - budget :]


@caught_by("inputs_unchanged")
class WritesIntoHiddenStates(Hidden):
    """Scales the hidden states that it was handed in place."""

    def read(self, hidden):
        with torch.inference_mode():
            return hidden.div_(2)


@caught_by("inputs_unchanged")
class WritesBackGamma(Deterministic):
    """Writes how many tokens it drafted last into its own settings, as transformers does."""

    def propose(self, request):
        made = super().propose(request)
        self.config = SizeConfig(max_gamma=max(made.longest - 1, 1))
        return made


@caught_by("inputs_unchanged")
class PrunesTheHead(Sampling):
    """Zeroes rows of the target's output embedding that it does not draft."""

    def open(self, session):
        with torch.no_grad():
            self.target.model.model.get_output_embeddings().weight[-1].zero_()
        return super().open(session)


@caught_by("inputs_unchanged")
class ScalesTheEmbeddings(Sampling):
    """Scales the embeddings that it is given, of which all drafters of a target have the same copy."""

    def open(self, session):
        self.target.features.input_embeddings.data.mul_(2)
        return super().open(session)


@caught_by("inputs_unchanged")
class SetsAPadToken(Sampling):
    """Gives the target's tokenizer a padding token, and has it pad on the left."""

    declares: ClassVar = {"needs_tokenizer": True}

    def __init__(self, target):
        super().__init__(target)
        target.tokenizer.pad_token = target.tokenizer.eos_token
        target.tokenizer.padding_side = "left"


@caught_by("budgets_independent")
class DrawsRowAfterRow(Stateless):
    """Draws by itself, for all rows in turn from one generator."""

    def propose(self, request):
        vocab = self.target.vocab_size
        numbers = torch.Generator().manual_seed(sum(len(row) for row in request.tokens))
        drafts = [torch.randint(vocab, (budget,), generator=numbers).tolist() for budget in request.budget]
        padded = torch.tensor([draft + [0] * (max(request.budget) - len(draft)) for draft in drafts])
        return Proposal(padded, request.budget, Dense(torch.full((*padded.shape, vocab), 1 / vocab)))


@caught_by("rows_independent")
class CopiesFromNeighbors(Deterministic):
    """Looks for continuations in all rows of the batch."""

    def propose(self, request):
        common = [token for row in request.tokens for token in row]
        return Proposal.from_rows([self.continuation(common, n) for n in request.budget])


@caught_by("same_seed_same_draft")
class DrawsGlobally(Sampling):
    """Adds noise from torch's global generator to its logits, which has no seed."""

    def all_logits(self, prefixes):
        return super().all_logits(prefixes) + torch.randn(len(prefixes), self.target.vocab_size)


def changing(name, change):
    """Return a drafter that changes something global when it opens a session."""

    class Changing(Sampling):
        def open(self, session):
            change()
            return super().open(session)

    Changing.__name__ = name
    caught_by("global_state_unchanged")(Changing)


changing("ReseedsTorch", lambda: torch.manual_seed(0))
changing("DrawsFromPython", random.random)
changing("SwitchesGradientsOff", lambda: torch.set_grad_enabled(False))
changing("TradesPrecision", lambda: torch.set_float32_matmul_precision("medium"))
changing("ComputesInDouble", lambda: torch.set_default_dtype(torch.float64))
changing("ComputesInHalf", lambda: torch.autocast("cpu").__enter__())
changing("MovesToItsFiles", lambda: os.chdir("/"))
changing("SetsTheEnvironment", lambda: os.environ.update(PLANTED_PARALLELISM="false"))
changing("HandlesSignals", lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
changing("LeavesAThread", lambda: threading.Thread(target=time.sleep, args=(20,), daemon=True).start())


@caught_by("global_state_unchanged")
class DrawsGloballyInTheEnd(Deterministic):
    """Takes from torch's global generator, in texts of more than 25 tokens only."""

    def continuation(self, tokens, budget):
        if len(tokens) > 25:
            torch.rand(1)
        return super().continuation(tokens, budget)
