"""Drafters that use more of the interface: hidden states, nested drafters, models, services, state, trees."""

import json
from collections.abc import Sequence
from itertools import count
from operator import add
from time import monotonic
from typing import Annotated
from urllib.request import urlopen

import torch
from pydantic import Field
from torch import Tensor

from specdec_core import (
    AutoregressiveDrafter,
    DeterministicDrafter,
    Drafter,
    DrafterConfig,
    DraftRequest,
    DraftSession,
    Outcome,
    PluginSpec,
    Proposal,
    SessionInfo,
    TargetInfo,
    hookimpl,
    load_model,
)
from specdec_core.interface import LAST_HIDDEN, CompositeDrafter, ModelError, NestedDrafter
from specdec_core.models import LoadedModel, ModelSession
from specdec_core.verification import dense


# --8<-- [start:autoregressive]
class Frequent(AutoregressiveDrafter):
    """Scores each token by how often it occurs in the text so far."""

    def logits(self, prefix: Sequence[int]) -> Tensor:
        counts = torch.bincount(torch.tensor(prefix), minlength=self.target.vocab_size)
        return (counts + 0.5).log()  # [V]


# --8<-- [end:autoregressive]
class SecondThoughtConfig(DrafterConfig):
    """Proposes what the target would have predicted in place of the last token."""

    needs_hidden_states = True


class SecondThought(Drafter):
    """Proposes one token: what the target would have predicted in place of the last one."""

    hidden_layers = (LAST_HIDDEN,)

    def __init__(self, config: DrafterConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        if target.features is None:
            raise ModelError("drafter 'second-thought': this target has no output embedding.")
        self.output = target.features.output_embeddings[: target.vocab_size]  # [V, D]

    def open(self, session: SessionInfo) -> DraftSession:  # noqa: ARG002
        return SecondThoughtSession(self)


class SecondThoughtSession(DraftSession):
    def __init__(self, drafter: SecondThought) -> None:
        self.drafter = drafter

    def propose(self, request: DraftRequest) -> Proposal:
        if request.wants_more():
            output = self.drafter.output
            states = request.hidden_states[LAST_HIDDEN].to(output)  # [B, D]
            request.sample(states @ output.T)  # [B, D] @ [D, V] -> [B, V]
        return request.proposal()


class CapConfig(DrafterConfig):
    """Limits the drafts of another drafter."""

    drafter: NestedDrafter
    """The drafter: a name, or a mapping with `name` and settings."""
    max_tokens: Annotated[int, Field(ge=1)] = 2
    """The maximum number of tokens to ask it for."""


class Cap(CompositeDrafter):
    """Limits the drafts of another drafter, whatever gamma is."""

    def __init__(self, config: CapConfig, target: TargetInfo) -> None:
        assert target.build is not None, "studies and registry.create set it"
        super().__init__(config, target, [target.build("drafter", config.drafter, target)])

    def open(self, session: SessionInfo) -> DraftSession:
        return CapSession(self.drafters[0].open(session), self.config.max_tokens)


class CapSession(DraftSession):
    def __init__(self, inner: DraftSession, max_tokens: int) -> None:
        self.inner, self.max_tokens = inner, max_tokens

    def propose(self, request: DraftRequest) -> Proposal:
        return self.inner.propose(request.fork([min(n, self.max_tokens) for n in request.budget]))

    def commit(self, outcome: Outcome) -> None:
        self.inner.commit(outcome)

    def rollback(self, lengths: Sequence[int]) -> None:
        self.inner.rollback(lengths)

    def close(self) -> None:
        self.inner.close()


class MixtureConfig(DrafterConfig):
    """Draws from the mean of the q of several drafters."""

    drafters: tuple[NestedDrafter, ...]
    """The drafters, each a name or a mapping."""


class Mixture(CompositeDrafter):
    """Drafts token by token from the mean of what several drafters would draw the token from."""

    autoregressive = True

    def __init__(self, config: MixtureConfig, target: TargetInfo) -> None:
        assert target.build is not None, "studies and registry.create set it"
        super().__init__(config, target, [target.build("drafter", one, target) for one in config.drafters])
        if self.hidden_layers:
            raise ModelError("drafter 'mixture': there are no hidden states of drafted tokens.")

    def open(self, session: SessionInfo) -> DraftSession:
        return MixtureSession(self.drafters, session)


class MixtureSession(DraftSession):
    def __init__(self, drafters: Sequence[Drafter], session: SessionInfo) -> None:
        self.members = [(drafter, drafter.open(session)) for drafter in drafters]
        self.vocab_size, self.nothing = session.vocab_size, (0,) * session.batch_size
        self.begin: list[int] | None = None  # where the draft that the members were told began

    def propose(self, request: DraftRequest) -> Proposal:
        self.begin = [len(row) for row in request.tokens]
        drawn: list[tuple[int, ...]] = [()] * len(self.begin)
        while request.wants_more():
            one_more = [request.fork([1] * len(drawn), after=drawn) for _ in self.members]
            q = sum(self.q_of(*member, fork) for member, fork in zip(self.members, one_more, strict=True))
            total = q.sum(dim=1, keepdim=True)  # [B, 1]: the number of drafters with a draft
            tokens = request.draw(torch.where(total > 0, q / total, 1 / self.vocab_size)).tolist()
            new = tuple((token,) * most for token, most in zip(tokens, one_more[0].budget, strict=True))
            drawn = [row + more for row, more in zip(drawn, new, strict=True)]
            self.tell(new, (False,) * len(new))
        return request.proposal()

    def q_of(self, drafter: Drafter, session: DraftSession, request: DraftRequest) -> Tensor:
        """Return q of the next token, `[B, V]`; zeros in rows without a draft."""
        proposal = session.propose(request.fork(drafter.clipped(request.tokens, request.budget)))
        drafted = torch.tensor(proposal.lengths)[:, None] > 0
        if not drafted.any():
            return torch.zeros(len(proposal.lengths), self.vocab_size)
        return torch.where(drafted, dense(proposal.q, proposal.tokens, self.vocab_size)[:, 0].cpu(), 0)

    def tell(self, new: tuple[tuple[int, ...], ...], finished: tuple[bool, ...]) -> None:
        for _, session in self.members:
            session.commit(Outcome(self.nothing, self.nothing, new, finished))  # no draft of theirs is verified

    def commit(self, outcome: Outcome) -> None:
        if self.begin is None:  # they were told nothing of a draft
            self.tell(outcome.committed, outcome.finished)
            return
        kept = outcome.accepted
        self.rollback([begin + n for begin, n in zip(self.begin, kept, strict=True)])
        self.tell(tuple(new[n:] for new, n in zip(outcome.committed, kept, strict=True)), outcome.finished)

    def rollback(self, lengths: Sequence[int]) -> None:
        self.begin = None
        for _, session in self.members:
            session.rollback(lengths)

    def close(self) -> None:
        for _, session in self.members:
            session.close()


class OwnModelConfig(DrafterConfig):
    """Drafts with a model that has the target's vocabulary."""

    targets = "decoder-only"

    model: str = "builtin:drafter"
    """A folder, a hub name or a built-in model."""


class OwnModel(Drafter):
    """Drafts with a model and its key-value cache."""

    autoregressive = True

    def __init__(self, config: OwnModelConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        self.loaded = load_model(config.model, folder=target.folder)
        # It reads all tokens but the last that it drafts.
        self.max_length = None if self.loaded.max_positions is None else self.loaded.max_positions + 1

    def open(self, session: SessionInfo) -> DraftSession:
        return OwnModelSession(self.loaded, session)


class OwnModelSession(DraftSession):
    """Between steps, the cache holds committed tokens."""

    def __init__(self, loaded: LoadedModel, session: SessionInfo) -> None:
        room = session.capacity + session.max_gamma
        self.model = ModelSession(loaded, session.batch_size, room, vocab_size=session.vocab_size)

    def propose(self, request: DraftRequest) -> Proposal:
        # The last committed token is read even if it is cached: the logits after it are not.
        pairs = zip(self.model.lengths, request.tokens, strict=True)
        self.model.rollback([min(cached, len(row) - 1) for cached, row in pairs])
        each = zip(self.model.lengths, request.tokens, request.budget, strict=True)
        unread = [row[cached:] if most else () for cached, row, most in each]
        drawn, kept = None, list(map(add, self.model.lengths, map(len, unread)))
        for depth in count():
            if not request.wants_more():
                break
            if drawn is None:
                logits = self.model.forward(unread)  # [B, 1, V]
            else:
                more = [int(most > depth) for most in request.budget]
                logits = self.model.forward([()] * len(more), drawn[:, None], more)
            drawn = request.sample(logits[:, -1])
        self.model.rollback(kept)  # accepted tokens are read in the next step, together
        return request.proposal()

    def rollback(self, lengths: Sequence[int]) -> None:
        self.model.rollback(lengths)

    def close(self) -> None:
        self.model.close()


class ServedConfig(DrafterConfig):
    """Drafts what a service answers."""

    url: str
    """Where it answers `{"tokens": [...], "budget": n}` with a list of token ids."""


class Served(DeterministicDrafter):
    """Asks a service for drafts, and drafts nothing for a second after it was slow or away."""

    away_until = 0.0

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        if monotonic() < self.away_until:
            return []
        asked = json.dumps({"tokens": list(tokens), "budget": budget}).encode()
        try:
            with urlopen(self.config.url, asked, timeout=0.1) as answer:
                return json.load(answer)[:budget]
        except (OSError, ValueError):  # not there, too late, or no JSON
            self.away_until = monotonic() + 1
            return []


class Fading(Drafter):
    """Scores tokens by a decaying sum of the embeddings before them."""

    def __init__(self, config: DrafterConfig, target: TargetInfo) -> None:
        super().__init__(config, target)
        if target.features is None:
            raise ModelError("drafter 'fading': this target has no output embedding.")
        self.output = target.features.output_embeddings[: target.vocab_size].float()  # [V, D]

    def open(self, session: SessionInfo) -> DraftSession:
        return FadingSession(self.output, session.batch_size)


# --8<-- [start:session]
class FadingSession(DraftSession):
    def __init__(self, output: Tensor, batch_size: int) -> None:
        self.output = output  # [V, D]
        self.state = output.new_zeros(batch_size, output.shape[1])  # [B, D], after the tokens read so far
        self.read = [0] * batch_size

    def propose(self, request: DraftRequest) -> Proposal:
        self.catch_up(request.tokens)
        state = self.state
        while request.wants_more():
            drawn = request.sample(state @ self.output.T)  # logits [B, V] -> tokens [B]
            state = state / 2 + self.output[drawn]
        return request.proposal()

    def catch_up(self, tokens: Sequence[Sequence[int]]) -> None:
        for row, committed in enumerate(tokens):
            for token in committed[self.read[row] :]:
                self.state[row] = self.state[row] / 2 + self.output[token]
            self.read[row] = len(committed)

    def rollback(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            if length < self.read[row]:  # the state cannot be rolled back: read again
                self.state[row], self.read[row] = 0, 0


# --8<-- [end:session]
class Everywhere(DeterministicDrafter):
    """Proposes what followed earlier occurrences of the last token, the latest first."""

    def draft(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        return next(iter(self.continuations(tokens, budget, budget)), [])

    def continuations(self, tokens: Sequence[int], budget: int, depth: int) -> Sequence[Sequence[int]]:
        starts = [after for after in range(len(tokens) - 1, 0, -1) if tokens[after - 1] == tokens[-1]]
        return [tokens[start : start + depth] for start in starts[:budget]]


class Branching(Fading):
    """Drafts trees, too."""

    drafts_trees = True

    def open(self, session: SessionInfo) -> DraftSession:
        return BranchingSession(self.output, session.batch_size)


class BranchingSession(FadingSession):
    def propose(self, request: DraftRequest) -> Proposal:
        if request.tree is None:
            return super().propose(request)
        self.catch_up(request.tokens)
        rows = torch.arange(len(self.read))[:, None]
        states = nodes = self.state[:, None]  # [B, 1, D]: after the committed tokens
        while request.wants_more():
            drawn = request.branch(nodes @ self.output.T)  # logits [B, P, V] -> the next level, M nodes
            nodes = states[rows, drawn.parents + 1] / 2 + self.output[drawn.tokens]  # [B, M, D]
            states = torch.cat([states, nodes], dim=1)  # parent -1 is in column 0
        return request.proposal()


@hookimpl
def specdec_drafters() -> list[PluginSpec]:
    """Announce the drafters."""
    return [
        PluginSpec("drafter", "second-thought", "parts:SecondThought", SecondThoughtConfig),
        PluginSpec("drafter", "cap", "parts:Cap", CapConfig),
        PluginSpec("drafter", "mixture", "parts:Mixture", MixtureConfig),
        PluginSpec("drafter", "frequent", "parts:Frequent", DrafterConfig),
        PluginSpec("drafter", "own-model", "parts:OwnModel", OwnModelConfig),
        PluginSpec("drafter", "served", "parts:Served", ServedConfig),
        PluginSpec("drafter", "fading", "parts:Fading", DrafterConfig),
        PluginSpec("drafter", "everywhere", "parts:Everywhere", DrafterConfig),
        PluginSpec("drafter", "branching", "parts:Branching", DrafterConfig),
    ]
