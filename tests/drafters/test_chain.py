"""The chain: who is asked, who is told what, and that nothing is chosen among what was drawn."""

from dataclasses import replace

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.observers import Observer
from specdec_core.interface import Dense, Outcome, PluginConfig, PluginError, PointMass, Proposal, Sparse
from specdec_core.interface.drafter import LAST_HIDDEN, Drafter, DraftSession, SessionInfo, TargetInfo
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import dense, density
from specdec_drafters.chain import ChainDrafter
from specdec_drafters.settings import ChainConfig
from tests.drafters.chains import V, chain
from tests.lossless import VOCAB
from tests.toys import NO_CONFIG, Gamma, TableDrafter, target_info

INFO = SessionInfo(batch_size=2, vocab_size=V, capacity=64, max_gamma=4, device="cpu")
TOKENS = [[1, 2], [3]]


def request_for(budget, tokens=None, sampling=None, seed=0, hidden_states=None):
    batch = len(budget)
    streams = RowGenerators([seed + row for row in range(batch)])
    recorder = DraftRecorder(LogitsToProbs(sampling or SamplingSettings()), streams, batch, V, 4, "cpu")
    recorder.start(tokens or TOKENS[:batch], tuple(budget), hidden_states)
    return recorder


def rows_of(proposal):
    return [row[:length] for row, length in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]


class Spy(Drafter):
    """Proposes what it was given for each row, up to the budget, and keeps what it is asked and told."""

    def __init__(self, *rows, q=None, name="Spy", breaks=None):
        super().__init__(NO_CONFIG, target_info(V))
        self.rows, self.q, self.name, self.breaks = rows, q, name, breaks
        self.infos, self.budgets, self.outcomes, self.rollbacks, self.closed = [], [], [], [], 0

    def open(self, session):
        self.fail("open")
        self.infos.append(session)
        return _SpySession(self)

    def fail(self, where):
        if self.breaks == where:
            raise RuntimeError(f"no luck in {where}")


class _SpySession(DraftSession):
    def __init__(self, spy):
        self.spy = spy

    def propose(self, request):
        self.spy.fail("propose")
        self.spy.budgets.append(request.budget)
        proposal = Proposal.from_rows([row[:n] for row, n in zip(self.spy.rows, request.budget, strict=True)])
        return proposal if self.spy.q is None else replace(proposal, q=self.spy.q(proposal.tokens))

    def commit(self, outcome):
        self.spy.fail("commit")
        self.spy.outcomes.append(outcome)

    def rollback(self, lengths):
        self.spy.fail("rollback")
        self.spy.rollbacks.append(tuple(lengths))

    def close(self):
        self.spy.closed += 1
        self.spy.fail("close")


def sure_dense(tokens):
    return Dense(torch.nn.functional.one_hot(tokens, V).float())


@pytest.mark.parametrize("budget", [(4, 4), (2, 1), (0, 3)])
def test_a_row_falls_through_to_the_next_drafter(budget):
    first, second, third = Spy((), (5, 6, 7)), Spy((1, 2, 3), (4,)), Spy((7,), (7,))
    proposal = chain(first, second, third).open(INFO).propose(request_for(budget))
    assert rows_of(proposal) == [[1, 2, 3][: budget[0]], [5, 6, 7][: budget[1]]]
    assert first.budgets == [budget]
    # Rows that are served ask for nothing more, and where no row is left nobody is asked.
    assert second.budgets == ([(budget[0], 0)] if budget[0] else [])
    assert third.budgets == []


def test_where_nobody_has_anything_the_step_is_plain():
    proposal = chain(Spy((), ()), Spy((), ())).open(INFO).propose(request_for((4, 4)))
    assert proposal.lengths == (0, 0)


def test_all_are_told_of_every_commit_each_of_its_own_rows():
    first, second, third = Spy((), (5, 6)), Spy((1, 2, 3), ()), Spy((), ())
    session = chain(first, second, third).open(INFO)
    session.propose(request_for((4, 4)))
    committed, finished = ((1, 9), (5, 6, 2)), (False, True)
    session.commit(Outcome((3, 2), (1, 2), committed, finished))
    assert first.outcomes == [Outcome((0, 2), (0, 2), committed, finished)]
    assert second.outcomes == [Outcome((3, 0), (1, 0), committed, finished)]
    assert third.outcomes == [Outcome((0, 0), (0, 0), committed, finished)]
    # A step in which the chain was not asked, and one in which something else was verified.
    session.commit(Outcome((0, 0), (0, 0), ((2,), ()), finished))
    session.propose(request_for((4, 0)))
    session.commit(Outcome((0, 0), (0, 0), ((2, 3), ()), finished))
    for spy in (first, second, third):
        assert spy.outcomes[1:] == [
            Outcome((0, 0), (0, 0), ((2,), ()), finished),
            Outcome((0, 0), (0, 0), ((2, 3), ()), finished),
        ]


def test_sessions_are_opened_alike_and_taken_back_and_closed_together():
    spies = Spy((1,), ()), Spy((), (2,))
    session = chain(*spies).open(INFO)
    session.rollback([1, 1])
    session.close()
    for spy in spies:
        assert (spy.infos, spy.rollbacks, spy.closed) == ([INFO], [(1, 1)], 1)


POINT, DRAWN = None, sure_dense


@pytest.mark.parametrize(
    ("min_draft_tokens", "budget", "drafts", "expected"),
    [
        (1, 4, [(POINT, 1), (POINT, 3)], 0),
        (2, 4, [(POINT, 1), (POINT, 3)], 1),
        (2, 4, [(POINT, 2), (POINT, 3)], 0),
        # The longest of those too short, the first of equals, where no other has any.
        (4, 4, [(POINT, 1), (POINT, 3), (POINT, 2)], 1),
        (4, 4, [(POINT, 2), (POINT, 2), (POINT, 0)], 0),
        # As long as it was asked for is never too short.
        (4, 2, [(POINT, 2), (DRAWN, 1)], 0),
        (4, 3, [(POINT, 2), (POINT, 3)], 1),
        # What was drawn is kept, however short, and comes before what is too short.
        (4, 4, [(DRAWN, 1), (POINT, 4)], 0),
        (4, 4, [(POINT, 3), (DRAWN, 1), (POINT, 4)], 1),
        (4, 4, [(POINT, 3), (DRAWN, 0), (POINT, 2)], 0),
        (1, 4, [(DRAWN, 0), (POINT, 1)], 1),
    ],
)
def test_which_drafts_are_too_short(min_draft_tokens, budget, drafts, expected):
    spies = [Spy([position + 1] * length, q=q) for position, (q, length) in enumerate(drafts)]
    session = chain(*spies, min_draft_tokens=min_draft_tokens).open(replace(INFO, batch_size=1))
    proposal = session.propose(request_for((budget,)))
    assert rows_of(proposal) == [[expected + 1] * drafts[expected][1]]
    session.commit(Outcome(proposal.lengths, (1,), ((expected + 1, 5),), (False,)))
    assert [any(spy.outcomes[0].drafted) for spy in spies] == [
        position == expected for position in range(len(spies))
    ]


def test_what_is_too_short_in_a_chain_within_does_not_depend_on_its_neighbors():
    def proposed(drafts, drawn, second=(7, 7, 7), min_draft_tokens=2):
        """Ask a chain whose first drafter is a chain; `drawn` serves the rows that `drafts` leaves empty."""
        within = chain(Spy(*drafts), Spy(*drawn, q=sure_dense))
        after = Spy(*[second] * len(drafts))
        info = replace(INFO, batch_size=len(drafts))
        session = chain(chain(within), after, min_draft_tokens=min_draft_tokens).open(info)
        return rows_of(session.propose(request_for((4,) * len(drafts), [[1]] * len(drafts))))

    # A copied token is too short, whether all rows of the inner chain were copied or some drawn; a drawn one is
    # not.
    assert proposed([(5,)], [()]) == [[7, 7, 7]]
    assert proposed([(5,), ()], [(), (6,)]) == [[7, 7, 7], [6]]
    assert proposed([(), (5,), ()], [(6,), (), ()]) == [[6], [7, 7, 7], [7, 7, 7]]
    assert proposed([(5,), ()], [(), (6,)], second=()) == [[5], [6]]


def sparse(tokens):
    ids = torch.stack([tokens, (tokens + 1) % V], dim=2)
    return Sparse(ids, torch.tensor([0.75, 0.25]).expand(ids.shape))


def wide_sparse(tokens):
    ids = torch.stack([tokens, (tokens + 1) % V, (tokens + 2) % V], dim=2)
    return Sparse(ids, torch.tensor([0.5, 0.25, 0.25]).expand(ids.shape))


def spread(tokens):
    return Dense(sure_dense(tokens).probabilities / 2 + 0.5 / V)


FORMS = {"point": None, "sparse": sparse, "wide": wide_sparse, "dense": spread}


def written_out(proposal):
    return dense(proposal.q, proposal.tokens, V)


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_rows_of_several_drafters_keep_their_own_q(first, second):
    spies = Spy((), (5, 6), (), q=FORMS[first]), Spy((1, 2, 3), (), (4,), q=FORMS[second])
    info = replace(INFO, batch_size=3)
    proposal = chain(*spies).open(info).propose(request_for((4, 4, 4), [[1], [2], [3]]))
    assert rows_of(proposal) == [[1, 2, 3], [5, 6], [4]]
    alone = [Proposal.from_rows(rows) for rows in ([(), (5, 6), ()], [(1, 2, 3), (), (4,)])]
    alone = [
        p if FORMS[form] is None else replace(p, q=FORMS[form](p.tokens))
        for p, form in zip(alone, (first, second), strict=True)
    ]
    q, owned = written_out(proposal), density(proposal.q, proposal.tokens)
    for row, who in enumerate((1, 0, 1)):
        length = proposal.lengths[row]
        torch.testing.assert_close(q[row, :length], written_out(alone[who])[row, :length])
        own = density(alone[who].q, alone[who].tokens)
        torch.testing.assert_close(owned[row, :length], own[row, :length])
        if isinstance(proposal.q, Sparse):
            listed = proposal.q.ids[row, :length]
            assert all(q[row, position, ids].min() > 0 for position, ids in enumerate(listed)), (
                "ids are of that position"
            )
    if {first, second} <= {"point"}:
        assert isinstance(proposal.q, PointMass)
    elif {first, second} <= {"point", "sparse", "wide"}:
        assert isinstance(proposal.q, Sparse), "what is sparse is never written out"
    else:
        assert isinstance(proposal.q, Dense)


def test_one_drafters_proposal_is_handed_back_untouched():
    table = TableDrafter(V)
    request = request_for((3, 2))
    proposal = chain(Spy((), ()), table).open(INFO).propose(request)
    assert proposal.lengths == (3, 2)
    assert request.made(proposal)
    # Also where another one had something that was too short.
    request = request_for((3, 2))
    proposal = chain(Spy((1,), ()), table, min_draft_tokens=2).open(INFO).propose(request)
    assert request.made(proposal)


class Looking(Spy):
    """Needs hidden states."""

    hidden_layers = (LAST_HIDDEN,)


def test_drafters_that_need_hidden_states_are_left_out_without_them():
    looking, second = Looking((5,), (6,)), Spy((1, 2), ())
    drafter = chain(looking, second)
    assert drafter.ready({})
    session = drafter.open(INFO)
    assert rows_of(session.propose(request_for((2, 2)))) == [[1, 2], []]
    assert (looking.budgets, second.budgets) == ([], [(2, 2)])
    states = {LAST_HIDDEN: torch.ones(2, 3)}
    assert rows_of(session.propose(request_for((2, 2), hidden_states=states))) == [[5], [6]]
    assert not chain(looking, Looking((), ())).ready({})
    assert chain(Looking((), ()), drafter).ready({})
    assert not chain(Looking((), ()), chain(looking)).ready({})


def test_the_first_step_of_a_request_has_a_draft(target):
    looking, steps = Looking((), ()), []

    class Steps(Observer):
        def on_step(self, report):
            steps.append(report.outcome.drafted)

    decoder = Decoder(
        target, chain(looking, TableDrafter(VOCAB), vocab=VOCAB), gamma=2, temperature=0, strict=True
    )
    result = decoder.generate([[2, 3], [5]], max_new_tokens=8, ignore_eos=True, observers=[Steps()])
    plain = Decoder(target, temperature=0).generate([[2, 3], [5]], max_new_tokens=8, ignore_eos=True)
    assert [row.tokens for row in result] == [row.tokens for row in plain]
    assert steps[0] == (2, 2)
    assert looking.budgets, "it is asked once the target has read the prompts"
    assert len(looking.budgets) == sum(any(drafted) for drafted in steps[1:])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            Spy((1,), (), breaks="propose"),
            "'Spy' (drafters[0]) failed in propose(): RuntimeError: no luck in propose",
        ),
        (Spy((1,), (), breaks="open"), "'Spy' (drafters[0]) failed in open(): RuntimeError: no luck in open"),
        (Spy((1,), (), q=lambda tokens: 3), "'Spy' (drafters[0]) failed in propose(): q is a int"),
    ],
)
@pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")
def test_a_drafter_that_fails_is_named_and_costs_no_token(target, broken, message):
    drafter = chain(
        broken, Spy((), (2, 3), q=lambda t: Dense(torch.full((*t.shape, VOCAB), 1 / VOCAB))), vocab=VOCAB
    )
    decoder = Decoder(target, drafter, gamma=Gamma(2), sampling=SamplingSettings(temperature=0))
    plain = Decoder(target, sampling=SamplingSettings(temperature=0))
    settings = GenerationSettings(max_new_tokens=8, ignore_eos=True)
    prompts = [[2, 3], [5]]
    result = decoder.generate(prompts, settings)
    expected = plain.generate(prompts, settings).sequences
    assert [row.tokens for row in result.sequences] == [row.tokens for row in expected]
    (failure,) = result.failures
    assert message in failure.message


def test_a_session_that_was_opened_is_closed_when_the_next_cannot_be():
    first, second = Spy((), ()), Spy((), (), name="late", breaks="open")
    with pytest.raises(PluginError, match=r"'late' \(drafters\[1\]\) failed in open\(\): RuntimeError"):
        chain(first, second).open(INFO)
    assert first.closed == 1


def test_settings_are_made_into_drafters_by_the_registry():
    with pytest.raises(PluginError, match=r"cannot make .* by itself: pass plugins, or make the drafter"):
        chain(PluginConfig())
    asked = []

    def build(kind, config, target):
        asked.append((kind, config, target))
        return Spy((1,), ())

    config = PluginConfig()
    target = TargetInfo(V, build=build)
    made = ChainDrafter(ChainConfig(drafters=(config, TableDrafter(V))), target)
    assert asked == [("drafter", config, target)]
    assert [type(member) for member in made.drafters] == [Spy, TableDrafter]


def test_what_one_needs_the_chain_needs():
    looking = Spy((), ())
    looking.hidden_layers = (3, LAST_HIDDEN)
    assert chain(TableDrafter(V), looking).hidden_layers == [LAST_HIDDEN, 3]
    assert not chain(TableDrafter(V)).hidden_layers
