"""What plugins are given is the core's own state: they cannot change it, and so not the text."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from specdec_core.decoding import Decoder
from specdec_core.decoding.tokens import TokenView
from specdec_core.interface import Dense, DeterministicDrafter, Drafter, DraftSession, PointMass, Proposal, Sparse
from specdec_core.models import wrap_model
from tests.drafters.chains import chain
from tests.drafters.test_hierarchical import hierarchy
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, target_info

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")

ATTACKS = {
    "append": lambda tokens: tokens.append(5),
    "extend": lambda tokens: tokens.extend([5, 6]),
    "insert": lambda tokens: tokens.insert(0, 5),
    "edit": lambda tokens: tokens.__setitem__(-1, 7),
    "edit a slice": lambda tokens: tokens.__setitem__(slice(0, 2), [1]),
    "delete": lambda tokens: tokens.__delitem__(0),
    "clear": lambda tokens: tokens.clear(),
    "pop": lambda tokens: tokens.pop(),
    "remove": lambda tokens: tokens.remove(tokens[0]),
    "sort": lambda tokens: tokens.sort(),
    "reverse": lambda tokens: tokens.reverse(),
    "append as to a list": lambda tokens: list.append(tokens, 5),
}


class Attacker(DeterministicDrafter):
    """Does something to the tokens, then drafts."""

    def __init__(self, attack):
        super().__init__(NO_CONFIG, target_info(V))
        self.attack = attack

    def draft(self, tokens, budget):
        self.attack(tokens)
        return [5] * budget


class Requesting(Drafter):
    """Does something to the request, then drafts."""

    def __init__(self, attack):
        super().__init__(NO_CONFIG, target_info(V))
        self.attack = attack

    def open(self, session):
        return _RequestingSession(self.attack)


class _RequestingSession(DraftSession):
    def __init__(self, attack):
        self.attack = attack

    def propose(self, request):
        self.attack(request)
        return Proposal.from_rows([[5] * n for n in request.budget])


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", V, seed=5).save_pretrained(folder)
    return folder


def texts(target, drafter=None, prompts=PROMPTS):
    result = Decoder(target, drafter, gamma=drafter and 3, temperature=0).generate(
        prompts, max_new_tokens=8, ignore_eos=True
    )
    return [row.tokens for row in result.sequences], result.failures


@pytest.mark.parametrize("attack", ATTACKS)
def test_committed_tokens_cannot_be_changed(target, attack):
    plain, _ = texts(target)
    attacked, (failure,) = texts(target, Attacker(ATTACKS[attack]))
    assert attacked == plain
    assert failure.plugin == "Attacker"
    assert attack == "append as to a list" or "read-only; change a copy of them: list(tokens)" in failure.message


def test_neither_below_a_chain_nor_below_a_hierarchy(target, middle):
    plain, _ = texts(target)
    drafters = {
        "chain": lambda drafter: chain(drafter, CountingDrafter(V), vocab=V),
        "hierarchy": lambda drafter: hierarchy(target, middle, drafter, Gamma(2)),
    }
    for build in drafters.values():
        for attack in ("append", "clear", "edit"):
            attacked, (failure,) = texts(target, build(Attacker(ATTACKS[attack])))
            assert attacked == plain
            assert "the committed tokens are read-only" in failure.message


REQUEST_ATTACKS = {
    "rows": lambda request: request.tokens.__setitem__(0, [1]),
    "tokens": lambda request: setattr(request, "tokens", [[1], [2]]),
    "budget": lambda request: setattr(request, "budget", (9, 9)),
    "hidden": lambda request: setattr(request, "hidden", None),
}


@pytest.mark.parametrize("attack", REQUEST_ATTACKS)
def test_a_request_cannot_be_changed(target, attack):
    plain, _ = texts(target)
    attacked, (failure,) = texts(target, Requesting(REQUEST_ATTACKS[attack]))
    assert attacked == plain
    assert failure.plugin == "Requesting"


class Keeping(Drafter):
    """Keeps the proposals that it makes in some form."""

    def __init__(self, form):
        super().__init__(NO_CONFIG, target_info(V))
        self.form = form

    def open(self, session):
        return _KeepingSession(self)


class _KeepingSession(DraftSession):
    def __init__(self, drafter):
        self.drafter = drafter

    def propose(self, request):
        self.drafter.made = self.drafter.form(request)
        return self.drafter.made


def drawn(request):
    while request.wants_more():
        request.sample(torch.linspace(0, 6, V).repeat(len(request.tokens), 1))
    return request.proposal()


def listed(request, q):
    made = Proposal.from_rows([[V - 1] * n for n in request.budget])
    return Proposal(made.tokens, made.lengths, q(made.tokens))


def sparse(tokens):
    ids = torch.stack([tokens, torch.zeros_like(tokens)], dim=2)
    return Sparse(ids, torch.tensor([0.9, 0.1]).repeat(*tokens.shape, 1))


def dense(tokens):
    return Dense(torch.full((*tokens.shape, V), 0.5 / (V - 1)).scatter(2, tokens[..., None], 0.5))


def parts(proposal):
    return [proposal.tokens, *(part for part in vars(proposal.q).values() if isinstance(part, torch.Tensor))]


FORMS = {
    "drawn": drawn,
    "point mass": lambda request: listed(request, lambda _: PointMass()),
    "sparse": lambda request: listed(request, sparse),
    "dense": lambda request: listed(request, dense),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_drafter_writes_while_the_target_computes_changes_nothing(target, form, temperature):
    drafter = Keeping(FORMS[form])
    decoder = Decoder(target, drafter, gamma=3, temperature=temperature, strict=True)

    def write(*_):
        for part in parts(drafter.made):
            part.data.zero_()  # is not counted as a change, as in a thread that fills its buffer again

    def text():
        rows = decoder.generate(PROMPTS, max_new_tokens=24, ignore_eos=True, seeds=[1, 2])
        return [row.tokens for row in rows]

    undisturbed = text()
    hook = target.model.register_forward_hook(write)
    try:
        assert text() == undisturbed
    finally:
        hook.remove()


def test_a_drafter_that_writes_to_the_embeddings_changes_no_text(target):
    plain, _ = texts(target)

    def attack(request):
        for weight in (target.features.output_embeddings, target.features.input_embeddings):
            weight.data[:] *= -5

    attacked, failures = texts(target, Requesting(attack))
    assert (attacked, failures) == (plain, ())


def test_sources_outcomes_and_reports_cannot_be_changed(device):
    seen = []

    class Keeper(CountingDrafter):
        def open(self, session):
            seen.append(session.sources)
            opened = super().open(session)
            opened.commit = seen.append
            return opened

    t5 = wrap_model(tiny_model("t5", V).to(device))
    decoder = Decoder(t5, Keeper(V), gamma=2, temperature=0)
    reports = list(decoder.stream(PROMPTS, max_new_tokens=4))
    sources, outcome, report = seen[0], seen[1], reports[0]
    assert sources == tuple(map(tuple, PROMPTS))
    for fields in (vars(outcome), vars(report)):
        assert all(isinstance(value, tuple) or not hasattr(value, "__len__") for value in fields.values())
    with pytest.raises(FrozenInstanceError):
        outcome.committed = ()


def test_a_view_reads_like_the_list_and_grows_with_it():
    tokens = [3, 1, 2]
    view = TokenView(tokens)
    tokens += [3]
    assert view == tokens == view.copy()
    assert TokenView([3, 1, 2, 3]) == view
    assert (len(view), view[-1], view[1:3], view[::-1]) == (4, 3, [1, 2], [3, 2, 1, 3])
    assert (view.index(3), view.index(3, 1), view.count(3), 2 in view, 9 in view) == (0, 3, 2, True, False)
    assert (view + [4], view + view) == ([3, 1, 2, 3, 4], tokens * 2)  # noqa: RUF005
    assert list(reversed(view)) == tokens[::-1]
    assert repr(view) == repr(tokens)
    assert torch.tensor([view, view]).tolist() == np.array([view, view]).tolist() == [tokens, tokens]
    view += [9]  # as with a tuple, a new list
    assert tokens == [3, 1, 2, 3]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_view_is_a_list_that_may_be_changed(copied):
    tokens = [3, 1]
    own = copied(TokenView(tokens))
    own.append(2)
    assert (own, tokens) == ([3, 1, 2], [3, 1])


def test_a_list_is_extended_by_a_view_in_place():
    own = kept = [1]
    own += TokenView([2, 3])
    assert kept == [1, 2, 3]
