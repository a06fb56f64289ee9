"""A driver of draft sessions: a check inspects each proposal, and decides on the tokens to commit."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from specdec_core.decoding.drawing import KeepDrafting
from specdec_core.decoding.guard import PluginGuard
from specdec_core.decoding.opening import LoopContext
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.validation import FAULTS, FINE, worst
from specdec_core.interface import LAST_HIDDEN, BatchInfo, Drafter, Outcome, PluginError, SessionInfo
from specdec_core.interface.controllers import ScriptedGamma
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.sampling.generators import RowGenerators, row_seed
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.testing.failures import CheckFailure, calling
from specdec_core.testing.harness.state import weak_reference
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget
from specdec_core.verification.distributions import dense

CAPACITY = 96
"""Maximum number of tokens of a row in a driven session."""

_EXPECTED = "a Proposal: int64 ids [B, K] of the vocabulary, within each budget, and the q they were sampled from"
_HINT = (
    "`request.sample(logits)` draws tokens and records q, while `request.wants_more()`; `request.proposal()` "
    "returns both. For tokens that are certain there is `Proposal.from_rows`."
)


@dataclass(frozen=True, eq=False)
class Draft:
    """The draft of one row.

    Attributes:
        tokens: Its tokens.
        q: For each token, the distribution it was drawn from: `[V]` float64 on the CPU, a copy.
        parents: For trees, the number of each token's parent; None for a line.
    """

    tokens: tuple[int, ...]
    q: tuple[Tensor, ...]
    parents: tuple[int, ...] | None = None

    def path(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the tokens on a path of `count` tokens, or on the longest if that is shorter.

        Of the paths of a tree it is the last, whose tokens do not follow each other.
        """
        paths: list[tuple[int, ...]] = [()]
        for number in range(len(self.tokens)):
            parent = number - 1 if self.parents is None else self.parents[number]
            paths.append((*paths[parent + 1], number))
        longest = min(count, max(map(len, paths)))
        return next(path for path in reversed(paths) if len(path) == longest)


@dataclass(eq=False)
class SessionDriver:
    """Drives a drafter's session over a batch, with the proposer of the core.

    Args:
        target: The target.
        drafter: The drafter.
        rows: The committed tokens that each row begins with.
        sources: With an encoder, the source of each row; by default `PROMPT`.
        sampling: Sampling settings of drafts.
        tree: The shape of drafts; None for lines.
        max_gamma: Maximum draft length.
        seed: Seed of the rows' generators.
        indices: The index in the batch whose generator each row uses; by default its own.
        prefilled: Whether the target has processed the rows, so that there are hidden states from the first step.
        primed: Whether a drafter that remembers is reset and taught a text first. All sessions then begin with the
            same knowledge, whatever was drafted before.
        keep_drafting: Decides which rows draft another token, given q of the token that each has just drawn.

    Attributes:
        rows: The committed tokens of each row.
        first_rows: The tokens that they began with.
        finished: Which rows have ended.
        sampling: The sampling settings.
        tree: The shape of drafts; None for lines.
        info: What the session was opened with.
        session: A weak reference to the session; None if its class does not support that.
        drafts: The last drafts.
        hidden: The hidden state `[B, D]` of `LAST_HIDDEN` in the last request and a copy from before it, or None.

    Raises:
        CheckFailure: The session cannot be opened. Methods raise it when a call into the session fails, or if the
            core would not verify a proposal.
    """

    target: TinyTarget
    drafter: Drafter
    rows: list[list[int]]
    _: KW_ONLY
    sources: Sequence[Sequence[int]] = ()
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    tree: TreeShape | None = None
    max_gamma: int = 5
    seed: int = 0
    indices: Sequence[int] = ()
    prefilled: bool = False
    primed: bool = True
    keep_drafting: KeepDrafting | None = None

    def __post_init__(self) -> None:
        target, drafter = self.target, self.drafter
        if self.primed and drafter.remembers:
            _prime(target, drafter)
        self.rows = rows = list(map(list, self.rows))
        self._views = tuple(map(TokenView, rows))
        self.first_rows = tuple(map(tuple, rows))
        self.finished = [False] * len(rows)
        self.sources = self.sources or [PROMPT] * len(rows)
        self.hidden: tuple[Tensor, Tensor] | None = None
        self.drafts: list[Draft] = [Draft((), ())] * len(rows)
        self._log = [f"opened a session for {_rows(rows)} on {target}"]
        self._generators = RowGenerators(self._seeds(self.seed))
        self._plan: Sequence[int] | TreeShape = ()
        self.info = SessionInfo(
            batch_size=len(rows),
            vocab_size=target.loaded.vocab_size,
            capacity=CAPACITY,
            max_gamma=self.max_gamma,
            device=target.loaded.device,
            sources=tuple(map(tuple, self.sources)) if target.encoder_decoder else None,
            trees=self.tree is not None,
        )
        batch = BatchInfo(len(rows), self.max_gamma, (CAPACITY,) * len(rows), self.sampling.greedy)
        to_probs = LogitsToProbs(self.sampling).for_batch(list(map(len, rows)))
        context = LoopContext(to_probs, self._generators, PluginGuard(strict=True))
        asked = ScriptedGamma(self.max_gamma, lambda: self._plan, self.keep_drafting)
        with calling(self.log, "a DraftSession"):
            self._proposer = context.open_drafting(drafter, asked, self.info, batch)
        self.session = weak_reference(self._proposer.session)

    def draft(
        self, budget: Sequence[int], *, seed: int | None = None, depth: Sequence[int] | None = None
    ) -> list[Draft]:
        """Request a proposal; return the draft of each row.

        Args:
            budget: Maximum draft length of each row; for trees, whether it drafts.
            seed: Reseed the rows' generators first.
            depth: For trees, the maximum length of each row's paths; by default the shape's.

        Raises:
            CheckFailure: The session raised, or the core would not verify what it returned.
        """
        if seed is not None:
            vars(self._generators).update(vars(RowGenerators(self._seeds(seed))))  # the session holds it
        if self.tree is None:
            self._plan, room = tuple(budget), tuple(budget)
            self._log.append(f"requested {_list(budget)} tokens after {_rows(self.rows)}")
        else:
            self._plan = self.tree
            room = tuple(self.tree.depth if most else 0 for most in budget) if depth is None else tuple(depth)
            self._log.append(f"requested {self.tree}, paths of at most {_list(room)}, after {_rows(self.rows)}")
        states = (
            self.target.hidden_states(self.drafter.hidden_layers, self.rows, self.sources)
            if self.prefilled
            else {}
        )
        last = states.get(LAST_HIDDEN)
        self.hidden = None if last is None else (last, last.clone())
        with calling(self.log, _EXPECTED, _HINT):
            proposal, faults = self._proposer.propose(self._views, room, states)
            code = FINE if faults is None else worst(faults.tolist(), proposal.lengths)
            if code != FINE:
                raise PluginError(FAULTS[code].format(last=self.info.vocab_size - 1))
        q = dense(proposal.q, proposal.tokens, self.info.vocab_size).cpu().to(torch.float64, copy=True)
        tokens, tree = proposal.tokens.tolist(), None if proposal.parents is None else proposal.parents.tolist()
        self.drafts = [
            Draft(tuple(tokens[row][:n]), tuple(q[row, :n]), None if tree is None else tuple(tree[row][:n]))
            for row, n in enumerate(proposal.lengths)
        ]
        of = "" if tree is None else f" with parents {_rows([draft.parents or () for draft in self.drafts])}"
        self._log.append(f"it drafted {_rows([draft.tokens for draft in self.drafts])}{of}")
        return self.drafts

    def _seeds(self, seed: int) -> list[int]:
        return [row_seed(seed, index) for index in self.indices or range(len(self.rows))]

    def accept(
        self, accepted: Sequence[int], next_tokens: Sequence[int], finished: Sequence[bool] | None = None
    ) -> None:
        """Commit the first tokens of each row's draft, and one token after them; of a tree, those of a path.

        Args:
            accepted: How many draft tokens of each row are accepted, cut to the length of the draft.
            next_tokens: The recovered or bonus token of each row.
            finished: Which rows end now. Nothing is committed to rows that have ended before.
        """
        tails = [() if ended else (token,) for token, ended in zip(next_tokens, self.finished, strict=True)]
        counts = [0 if ended else count for count, ended in zip(accepted, self.finished, strict=True)]
        if finished is not None:
            self.finished = [now or before for now, before in zip(finished, self.finished, strict=True)]
        self.commit_drafts(counts, tails)

    def step(self, number: int, seed: int | None = None) -> list[Draft]:
        """Draft 4 tokens in each row, and commit some, another few for each number; return the drafts."""
        batch = len(self.rows)
        drafts = self.draft([4] * batch, seed=seed)
        self.accept([number % 3] * batch, [2 + number % 3] * batch)
        return drafts

    def commit_drafts(
        self, accepted: Sequence[int], tails: Sequence[Sequence[int]], mine: Sequence[bool] | None = None
    ) -> None:
        """Append the first tokens of each row's draft, of a tree those of a path, and any tokens after them.

        Calls the session's `commit`.

        Args:
            accepted: How many draft tokens of each row are accepted, cut to the length of the draft.
            tails: The tokens after them.
            mine: The rows in which this draft was used, and not another drafter's; by default all.
        """
        mine = [True] * len(self.rows) if mine is None else mine
        drafts = [draft if own else Draft((), ()) for draft, own in zip(self.drafts, mine, strict=True)]
        drafted = tuple(len(draft.tokens) for draft in drafts)
        paths = tuple(draft.path(count) for draft, count in zip(drafts, accepted, strict=True))
        new = [
            (*(draft.tokens[number] for number in path), *tail)
            for draft, path, tail in zip(drafts, paths, tails, strict=True)
        ]
        tree = any(draft.parents is not None for draft in drafts)
        outcome = Outcome(
            drafted,
            tuple(map(len, paths)),
            tuple(new),
            tuple(self.finished),
            parents=tuple(draft.parents or () for draft in drafts) if tree else None,
            paths=paths if tree else None,
        )
        self.prefilled = True
        for row, tokens in zip(self.rows, new, strict=True):
            row.extend(tokens)
        how = f"accepted {_list(outcome.accepted)} of them" if any(outcome.drafted) else "did not use the drafter"
        ended = f"; finished: {_list(outcome.finished)}" if any(outcome.finished) else ""
        self._log.append(f"{how} and committed {_rows(outcome.committed)}{ended}")
        with calling(self.log):
            self._proposer.commit(outcome)

    def commit_unused(self, new: Sequence[Sequence[int]]) -> None:
        """Commit the tokens of a step in which this drafter was not used."""
        self.commit_drafts([0] * len(new), new, [False] * len(new))

    def rollback(self, lengths: Sequence[int]) -> None:
        """Drop all but the first `lengths[b]` tokens of each row b, and call the session's `rollback`."""
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]
        self._log.append(f"rolled back to {_list(lengths)} committed tokens")
        with calling(self.log):
            self._proposer.rollback(tuple(lengths))

    def close(self) -> None:
        """Close the session."""
        self._log.append("closed the session")
        with calling(self.log):
            self._proposer.close()

    def reopen(self) -> Self:
        """Return a driver with a new session that begins with the tokens committed so far."""
        return replace(self, primed=True, keep_drafting=None)

    @property
    def log(self) -> str:
        """Everything that was done with this session, one action per line."""
        return "\n".join(self._log)

    def failure(self, got: str, expected: str, hint: str | None = None) -> CheckFailure:
        """Return a failure that reports everything that was done with this session."""
        return CheckFailure(self.log, got, expected, hint)


def _prime(target: TinyTarget, drafter: Drafter) -> None:
    """Have a drafter that remembers know one text and nothing else."""
    drafter.reset()
    teacher = SessionDriver(target, drafter, [target.begin()], primed=False)
    teacher.draft([1])
    teacher.accept([0], [PROMPT[0]])
    teacher.commit_unused([[*PROMPT, *reversed(PROMPT)]])
    teacher.draft([1])
    teacher.close()


def _rows(rows: Sequence[Sequence[int]]) -> str:
    """Return rows of tokens as text: the first four."""
    shown = ", ".join(map(_list, rows[:4]))
    return f"[{shown}{f', ... ({len(rows)} rows)' if len(rows) > 4 else ''}]"


def _list(values: Sequence[object]) -> str:
    """Return values as text: the last twelve."""
    shown = [str(value) for value in values[-12:]]
    return f"[{', '.join(['...'] * (len(values) > 12) + shown)}]"
