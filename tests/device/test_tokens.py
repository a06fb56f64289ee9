"""On a GPU, every feature gives the tokens that it gives on the CPU: random numbers are drawn there for both."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Dense, Drafter, DraftSession, ModelError, Proposal
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import pack, wrap_model
from tests.catalogue import DRAFTERS, GAMMAS
from tests.decoding.letters import PROMPT, tiny_tokenizer
from tests.decoding.letters import VOCAB as LETTERS
from tests.device.cases import catalogue_on, decode, gamma_of, model_drafter, target_on, tokens_of
from tests.lossless import SETTINGS, VOCAB
from tests.pairwise import pairwise
from tests.simulated_gpu import installed, late_copies
from tests.tiny import FAMILIES, tiny_model
from tests.toys import NO_CONFIG, target_info

TIMED = ("running-average-timed", "cost-aware", "cost-aware-given")  # other drafts each time
TREES = ("tree", "tree-best-first")
STEADY = [who for who in GAMMAS if who not in TIMED]
RULES = ("token", "block", "rejection", "exact-match", "typical", "top-k")
LENIENCE = {
    "lossless": None,
    "constant": 0.5,
    "greedy": {"name": "greedy", "lenience": 0.3},
    "schedule": {"name": "schedule", "points": ((0, 1.0), (4, 0.3))},
    "budgeted": {"name": "budgeted", "max_deviation": 2.0, "min_lenience": 0.2},
}
SAMPLING = ("greedy", "temperature-1", "temperature-0.7-top-p-0.6", "top-k-3")
ACROSS = [("cuda", "cuda:1"), ("cuda", "cpu"), ("cpu", "cuda")]


def assert_equal_tokens(device, make, **settings):
    """Compare a decoder made for the CPU with one made for the device."""
    assert decode(make(device), **settings) == decode(make("cpu"), **settings)


@pytest.mark.parametrize(("who", "gamma", "sampling", "rows"), pairwise(DRAFTERS, STEADY, SAMPLING, (1, 4)))
def test_each_drafter_and_controller(device, who, gamma, sampling, rows):
    def make(where):
        drafter = catalogue_on(where).make(who, afresh=True)
        shape = gamma_of(gamma if drafter.drafts_trees or gamma not in TREES else "additive")
        return Decoder(target_on(where), drafter, gamma=shape, sampling=SETTINGS[sampling])

    assert_equal_tokens(device, make, rows=rows)


@pytest.mark.parametrize("who", TIMED)
def test_each_controller_that_looks_at_the_clock(device, who):
    drafter = catalogue_on(device).make("bigram")
    assert decode(Decoder(target_on(device), drafter, gamma=gamma_of(who), temperature=1))


@pytest.mark.parametrize(
    ("rule", "lenience", "sampling", "who"),
    pairwise(RULES, LENIENCE, SAMPLING, ("transformer", "bigram", "copy-recent")),
)
def test_each_rule_and_lenience(device, rule, lenience, sampling, who):
    def make(where):
        return Decoder(
            target_on(where),
            catalogue_on(where).make(who),
            gamma=3,
            rule=rule,
            lenience=LENIENCE[lenience] if rule == "token" else None,
            sampling=SETTINGS["greedy" if rule == "exact-match" else sampling],
        )

    assert_equal_tokens(device, make)


@pytest.mark.parametrize(
    ("family", "who", "gamma", "sampling"),
    pairwise(
        FAMILIES,
        (None, "transformer", "early-exit", "bigram"),
        ("fixed", "tree"),
        ("greedy", "temperature-1"),
    ),
)
def test_each_family(device, family, who, gamma, sampling):
    def make(where):
        drafted = {"drafter": catalogue_on(where, family).make(who), "gamma": gamma_of(gamma)} if who else {}
        return Decoder(target_on(where, family), sampling=SETTINGS[sampling], **drafted)

    assert_equal_tokens(device, make)


@pytest.mark.parametrize(
    ("family", "who", "beams"), pairwise(("gpt2", "llama", "t5"), (None, "transformer", "copy-recent"), (2, 3))
)
def test_beams(device, family, who, beams):
    def make(where):
        drafted = {"drafter": catalogue_on(where, family).make(who), "gamma": 3} if who else {}
        return Decoder(target_on(where, family), temperature=0, **drafted)

    assert_equal_tokens(device, make, beams=beams)


@pytest.mark.parametrize(
    ("places", "gamma", "sampling", "beams"),
    [
        *((*one, 1) for one in pairwise(ACROSS, ("fixed", "tree", "confidence"), ("greedy", "temperature-1"))),
        *((places, "fixed", "greedy", 2) for places in ACROSS),
    ],
)
def test_target_and_drafter_on_different_devices(places, gamma, sampling, beams):
    if "cuda:1" in places and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")

    def tokens(target, drafter):
        made = Decoder(
            target_on(target), model_drafter(drafter), gamma=gamma_of(gamma), sampling=SETTINGS[sampling]
        )
        return decode(made, beams=beams)

    assert tokens(*places) == tokens("cpu", "cpu")


@pytest.mark.parametrize(
    ("who", "gamma", "sampling"),
    pairwise((None, "transformer", "early-exit", "copy-recent"), ("fixed", "tree"), ("greedy", "temperature-1")),
)
def test_cuda_graphs(device, who, gamma, sampling):
    def make(where):
        drafted = {"drafter": catalogue_on(where).make(who), "gamma": gamma_of(gamma)} if who else {}
        return Decoder(target_on(where, graphs=True), sampling=SETTINGS[sampling], **drafted)

    eager = pytest.warns(PluginWarning, match="compile: token trees") if who and gamma == "tree" else nullcontext()
    with eager:
        assert_equal_tokens(device, make)
    assert target_on(device, graphs=True).passes is not None


@pytest.mark.parametrize(
    ("who", "gamma", "sampling"),
    pairwise((None, "bigram", "transformer"), ("fixed", "tree"), ("greedy", "temperature-1", "top-k-3")),
)
def test_constraints(device, who, gamma, sampling, tmp_path):
    def tokens(where):
        target = wrap_model(tiny_model("gpt2", LETTERS, sharpness=0.8).to(where), tiny_tokenizer())
        drafted = {"drafter": catalogue_on(where).make(who), "gamma": gamma_of(gamma)} if who else {}
        made = Decoder(target, sampling=SETTINGS[sampling], **drafted)
        constraints = [{"regex": "[ab](a|ab|bb)?c[ab]?"}, None, {"regex": "cc(a|b|ba)b?c"}]
        return tokens_of(made.generate([list(PROMPT)] * 3, max_new_tokens=8, seed=1, constraints=constraints))

    assert tokens(device) == tokens("cpu")


def test_packed_weights_are_refused(device):
    with pytest.raises(ModelError, match="CPU"):
        pack(target_on(device))


class Drawing(Drafter):
    """Draws its tokens itself, and gives q, on a device of its own."""

    def __init__(self, where):
        super().__init__(NO_CONFIG, target_info(VOCAB))
        self.where = where

    def open(self, session):
        return DrawingSession(self.where)


class DrawingSession(DraftSession):
    def __init__(self, where):
        self._where, self._generator = where, torch.Generator().manual_seed(5)

    def propose(self, request):
        size = (len(request.tokens), max(request.budget))
        q = torch.rand(*size, VOCAB, generator=self._generator).softmax(-1)
        tokens = torch.multinomial(q.view(-1, VOCAB), 1, generator=self._generator).view(size)
        return Proposal(tokens.to(self._where), tuple(request.budget), Dense(q.to(self._where)))


class DrawingTrees(Drawing):
    """Draws trees, each of one branch."""

    drafts_trees = True

    def open(self, session):
        return DrawingTreesSession(self.where)


class DrawingTreesSession(DrawingSession):
    def propose(self, request):
        proposal = super().propose(request)
        parents = torch.arange(proposal.tokens.shape[1]).expand_as(proposal.tokens) - 1
        lengths = tuple(map(min, request.budget, request.depth))
        return Proposal(proposal.tokens, lengths, proposal.q, parents.to(self._where))


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_a_tree_of_tensors(device, where):
    expected = decode(Decoder(target_on("cpu"), DrawingTrees("cpu"), gamma=gamma_of("tree"), temperature=1))
    drafter = DrawingTrees(device if where == "cuda" else "cpu")
    assert decode(Decoder(target_on(device), drafter, gamma=gamma_of("tree"), temperature=1)) == expected


@pytest.mark.parametrize("places", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_nothing_is_read_before_it_has_arrived(places):
    target, drafter = places
    expected = decode(Decoder(target_on("cpu"), Drawing("cpu"), gamma=3, temperature=1))
    if not installed():
        assert decode(Decoder(target_on(target), Drawing(drafter), gamma=3, temperature=1)) == expected
        return
    with late_copies():
        assert decode(Decoder(target_on(target), Drawing(drafter), gamma=3, temperature=1)) == expected


@pytest.mark.parametrize(
    ("who", "gamma"),
    [*product((None, "transformer", "bigram", "early-exit"), ("fixed", "tree")), ("translated", "fixed")],
)
def test_copies_may_arrive_late(device, simulated, who, gamma):
    def make(where):
        drafted = {"drafter": catalogue_on(where).make(who), "gamma": gamma_of(gamma)} if who else {}
        return Decoder(target_on(where), temperature=1, **drafted)

    expected = decode(make("cpu"))
    with late_copies():
        assert decode(make(device)) == expected
