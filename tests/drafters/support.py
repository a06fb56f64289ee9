"""Tools of the drafter tests: a sampler that needs no decoder, one step of a decoder, and random heads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import Candidates, Dense, Outcome, Proposal, TokenTree
from specdec_core.interface.drafter import Drafter, DraftRequest, DraftSession, SessionInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.interface.tree import TreeShape
from specdec_core.models import LoadedModel
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_drafters.heads.drafter import HeadsDrafter
from specdec_drafters.settings import HeadsConfig
from tests.catalogue import write_random_heads


class SeededRequest:
    """Temperature 1, one generator a row: the minimum that the interface promises of a request for a line."""

    tree = None

    def __init__(
        self,
        tokens: Sequence[Sequence[int]],
        budget: Sequence[int],
        seed: int = 0,
        hidden_states: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.tokens, self.budget = tokens, tuple(budget)
        self.hidden_states = hidden_states or {}
        self.depth = self.budget
        self.generators = [torch.Generator().manual_seed(seed + row) for row in range(len(budget))]
        self.drawn: list[Tensor] = []
        self.q: list[Tensor] = []

    def sample(self, logits: Tensor) -> Tensor:
        assert torch.isfinite(logits).any(-1).all()
        assert not torch.isnan(logits).any()
        return self.draw(logits.softmax(-1))

    def draw(self, probabilities: Tensor) -> Tensor:
        assert self.wants_more(), "a token was drawn beyond every budget"
        host = probabilities.cpu()  # where its generators are
        torch.testing.assert_close(host.sum(-1), torch.ones(len(self.budget)), atol=1e-5, rtol=0)
        pairs = zip(host, self.generators, strict=True)
        drawn = torch.cat([torch.multinomial(row, 1, generator=generator) for row, generator in pairs]).to(
            probabilities.device
        )
        self.drawn.append(drawn)
        self.q.append(probabilities.clone())
        return drawn

    def sample_line(self, run: object) -> bool:
        return False

    def sample_candidates(self, rows: Sequence[Candidates | None]) -> list[int]:
        vocab_size = 1 + max(int(row.ids[-1]) for row in rows if row is not None)
        written = np.zeros((len(rows), vocab_size), dtype=np.float32)
        for out, row in zip(written, rows, strict=True):
            if row is not None:
                out[:] = -np.inf
                out[row.ids] = row.log_weights
        return self.sample(torch.from_numpy(written)).tolist()

    def wants_more(self) -> bool:
        return len(self.drawn) < max(self.budget)

    def proposal(self) -> Proposal:
        if not self.drawn:
            return Proposal.empty(len(self.budget))
        lengths = tuple(min(budget, len(self.drawn)) for budget in self.budget)
        return Proposal(torch.stack(self.drawn, 1), lengths, Dense(torch.stack(self.q, 1)))


def request_for(tokens: Sequence[Sequence[int]], budget: Sequence[int], seed: int = 0) -> DraftRequest:
    return SeededRequest(tokens, budget, seed)


def tree_request(
    tokens: Sequence[Sequence[int]],
    budget: Sequence[int],
    shape: TreeShape,
    vocab_size: int,
    sampling: SamplingSettings | None = None,
    hidden_states: Mapping[int, Tensor] | None = None,
) -> DraftRecorder:
    """Return the core's own request for a tree, whose paths may be as long as the shape's."""
    generators = RowGenerators(range(len(budget)))
    to_probs = LogitsToProbs(sampling or SamplingSettings())
    request = DraftRecorder(to_probs, generators, len(budget), vocab_size, max(budget), "cpu")
    depth = (shape.depth,) * len(budget)
    request.start(tokens, tuple(budget), hidden_states, tree=shape, depth=depth)
    return request


def info_for(batch_size: int, vocab_size: int, sources: Sequence[Sequence[int]] | None = None) -> SessionInfo:
    return SessionInfo(batch_size, vocab_size, capacity=512, max_gamma=16, device="cpu", sources=sources)


def rows_of(proposal: Proposal) -> list[list[int]]:
    return [row[:length] for row, length in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]


def commit(
    session: DraftSession, tokens: Sequence[list[int]], proposal: Proposal, kept: Sequence[int], last: int = 1
) -> None:
    """Keep the first `kept[b]` drafted tokens of each row and the token `last`, as the core would."""
    drafts = rows_of(proposal)
    committed = tuple((*draft[:n], last) for draft, n in zip(drafts, kept, strict=True))
    for row, new in zip(tokens, committed, strict=True):
        row.extend(new)
    finished = (False,) * len(tokens)
    session.commit(Outcome(proposal.lengths, tuple(kept), committed, finished))


def commit_paths(session: DraftSession, tokens: Sequence[list[int]], proposal: Proposal, shape: TokenTree) -> None:
    """Accept a path of each of three rows' trees and the token 20, as the core would."""
    paths = ((1, 2, 4), (0,), ())
    drafted = proposal.tokens.tolist()
    new = tuple((*(row[node] for node in path), 20) for row, path in zip(drafted, paths, strict=True))
    for row, more in zip(tokens, new, strict=True):
        row += more
    parents = tuple(shape.parents[:count] for count in proposal.lengths)
    accepted = tuple(map(len, paths))
    session.commit(Outcome(proposal.lengths, accepted, new, (False,) * 3, parents=parents, paths=paths))


def assert_as_fresh(
    drafter: Drafter, info: SessionInfo, session: DraftSession, tokens: Sequence[list[int]]
) -> None:
    """Fail unless `session` proposes what a session opened just now would, with the same q."""
    budget = [4] * len(tokens)
    used = session.propose(request_for(tokens, budget, seed=5))
    fresh = drafter.open(info).propose(request_for(tokens, budget, seed=5))
    assert rows_of(used) == rows_of(fresh)
    if isinstance(used.q, Dense) and isinstance(fresh.q, Dense):
        torch.testing.assert_close(used.q.probabilities, fresh.q.probabilities, atol=1e-5, rtol=1e-4)


def heads_for(target: LoadedModel, folder: Path) -> HeadsDrafter:
    """Write three random heads for a target to a folder; return their drafter."""
    path = folder / "heads.safetensors"
    write_random_heads(path, target)
    return HeadsDrafter(HeadsConfig(model=str(path)), target.info())


def assert_tree_paths_leave_what_a_fresh_session_has(
    drafter: Drafter, info: SessionInfo, prompts: Sequence[Sequence[int]], vocab_size: int
) -> None:
    """Draft trees for three rows, accept some paths, and compare with a fresh session after each."""
    session, tokens = drafter.open(info), [list(prompt) for prompt in prompts]
    shape = TokenTree((-1, -1, 1, 1, 2))
    for paths in (((1, 2, 4), (0,), ()), ((1,), (), (1, 3))):
        budget = (5, 2, 4)
        proposal = session.propose(tree_request(tokens, budget, shape, vocab_size))
        rows = zip(tokens, proposal.tokens.tolist(), paths, strict=True)
        new = tuple((*(drafted[node] for node in path), 20 + len(row)) for row, drafted, path in rows)
        for row, more in zip(tokens, new, strict=True):
            row += more
        parents = tuple(shape.parents[:count] for count in budget)
        accepted = tuple(map(len, paths))
        session.commit(Outcome(budget, accepted, new, (False,) * 3, parents=parents, paths=paths))
        assert_as_fresh(drafter, info, session, tokens)


def names_of(tokens: Sequence[int], source: Sequence[int] | None = None) -> dict[str, Tensor]:
    """Return the arguments of a model for one text, and for its source if it has one."""
    ids = torch.tensor([list(tokens)])
    return (
        {"input_ids": ids} if source is None else {"input_ids": torch.tensor([source]), "decoder_input_ids": ids}
    )


SOURCES = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
PROMPTS = [[2, 3, 4, 5, 6, 7], [8], [9, 10, 11]]
STEPS = [((3, 3, 3), (3, 0, 0)), ((2, 4, 0), (0, 4, 0)), ((4, 1, 3), (2, 1, 0)), ((1, 1, 1), (1, 1, 1))]


def assert_q_through_drafts_commits_and_ragged_rows(
    drafter: Drafter,
    q_of: Callable[..., Tensor],
    vocab_size: int,
    sources: Sequence[Sequence[int]] | None = None,
    **tolerance: float,
) -> tuple[SessionInfo, DraftSession, list[list[int]]]:
    """Compare q of each drafted token with `q_of` the text before it and its source; return the session."""
    info, tokens = info_for(3, vocab_size, sources), [list(prompt) for prompt in PROMPTS]
    session = drafter.open(info)
    for seed, (budget, kept) in enumerate(STEPS):
        proposal = session.propose(request_for(tokens, budget, seed=10 * seed))
        assert proposal.lengths == budget
        for row, draft in enumerate(rows_of(proposal)):
            for position in range(len(draft)):
                expected = q_of([*tokens[row], *draft[:position]], sources and sources[row])
                found = proposal.q.probabilities[row, position]
                torch.testing.assert_close(found, expected, **(tolerance or {"atol": 1e-5, "rtol": 1e-3}))
        commit(session, tokens, proposal, kept, last=20 + seed)
    return info, session, tokens


def assert_commits_and_rollbacks_equal_a_fresh_session(
    drafter: Drafter, info: SessionInfo, data: st.DataObject, texts: st.SearchStrategy[list[int]]
) -> None:
    """Let two rows grow by any number of tokens and lose any number, also to come back to the same length."""
    session, tokens = drafter.open(info), [[0], [1]]
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            session.propose(request_for(tokens, data.draw(st.sampled_from([[4, 4], [0, 4]]))))
        kept = [data.draw(st.integers(1, len(row))) for row in tokens]
        session.rollback(kept)
        for row, length in zip(tokens, kept, strict=True):
            row[length:] = data.draw(texts)
        assert_as_fresh(drafter, info, session, tokens)
