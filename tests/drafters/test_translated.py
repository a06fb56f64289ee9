"""Drafters with another tokenizer: the target's distribution, their q in its tokens, and their outcomes."""

import re
from itertools import accumulate
from operator import and_, eq

import numpy as np
import pytest
import torch
from tokenizers import decoders

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import Candidates, Dense, PluginError, PointMass, Proposal, Sparse, TargetInfo
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import load_model, wrap_model
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.testing.harness.enumeration import adjusted
from specdec_core.testing.harness.tiny_target import uncached_logits
from specdec_drafters.hierarchical import HierarchicalDrafter
from specdec_drafters.ngram.arpa import write_arpa
from specdec_drafters.ngram.drafter import NgramDrafter
from specdec_drafters.ngram.kneser_ney import fit
from specdec_drafters.prompt_copy import PromptCopyDrafter
from specdec_drafters.settings import (
    HierarchicalConfig,
    NgramConfig,
    PromptCopyConfig,
    TransformerConfig,
    TranslatedConfig,
)
from specdec_drafters.transformer import TransformerDrafter
from specdec_drafters.translated.drafter import TranslatedDrafter
from specdec_drafters.translated.shared import SharedTokens
from tests.drafters.support import commit, info_for, request_for, rows_of
from tests.lossless import SETTINGS, VOCAB
from tests.spelled import OTHER_VOCAB, SHARED, other_tokenizer, target_tokenizer
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, TableDrafter


@pytest.fixture(scope="module")
def info(target):
    return TargetInfo(VOCAB, target.eos_ids, target.device, target_tokenizer())


@pytest.fixture(scope="module")
def own_info(target):
    """The target as a drafter with the other tokenizer sees it."""
    return TargetInfo(OTHER_VOCAB, (2,), target.device, other_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with the other tokenizer, and a back-off model over its ids."""
    folder = tmp_path_factory.mktemp("other")
    tiny_model("llama", OTHER_VOCAB, seed=5, sharpness=0.8).save_pretrained(folder / "model")
    other_tokenizer().save_pretrained(folder / "model")
    text = np.array([0, 3, 4, 3, 0, 5, 6, 1, 2, 4, 3, 4, 0, 5, 3], dtype=np.int32)
    ngrams = fit([text], OTHER_VOCAB, 2)
    write_arpa(folder / "other.arpa", ngrams.levels, ngrams.known)
    return folder


@pytest.fixture(scope="module")
def drafters(folder, own_info):
    """Drafters with the other tokenizer, one for each way in which tokens are drawn."""

    def toy(drafter):
        drafter.target = own_info
        return drafter

    table = toy(TableDrafter(OTHER_VOCAB))
    bigram = NgramDrafter(NgramConfig(arpa=folder / "other.arpa"), own_info)
    few = NgramDrafter(NgramConfig(arpa=folder / "other.arpa", candidates=1), own_info)
    model = TransformerDrafter(TransformerConfig(model=str(folder / "model")), own_info)
    hierarchy = HierarchicalDrafter(
        HierarchicalConfig.model_construct(
            **TransformerConfig(model=str(folder / "model")).model_dump(), drafter=table, gamma=Gamma(2)
        ),
        own_info,
    )
    return {
        "model": model,  # sample
        "bigram": bigram,  # sample_candidates
        "few": few,  # often no candidate is shared
        "counting": toy(CountingDrafter(OTHER_VOCAB)),
        "hierarchy": hierarchy,  # extend
    }


def translated(drafter, info, method="tli"):
    return TranslatedDrafter(TranslatedConfig(drafter=drafter, method=method), info)


SHARED_TOKENS = SharedTokens(SHARED, VOCAB, OTHER_VOCAB)


def q_forms():
    """A q over the drafter's tokens in each form; the last of a sparse one is padding."""
    row = torch.tensor([0.1, 0.2, 0.05, 0.15, 0.3, 0.12, 0.08])
    listed = torch.tensor([0, 3, 4, 6, 0])
    weights = torch.tensor([0.3, 0.2, 0.4, 0.1, 0.0])
    sparse = torch.zeros(OTHER_VOCAB).index_add(0, listed, weights)
    return {
        "dense": (row, Dense(row.view(1, 1, -1))),
        "sparse": (sparse, Sparse(listed[None, None], weights[None, None])),
    }


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_draft_that_another_drew_is_cut_and_renormalized_so_that_the_distribution_is_p_exactly(form):
    """Enumerated: x is drawn from q over the drafter's tokens; if it is shared, it is accepted or replaced."""
    row, q = q_forms()[form]
    p = torch.tensor([0.05, 0.3, 0.25, 0.1, 0.2, 0.1])
    emitted = torch.zeros(VOCAB)
    for x in range(OTHER_VOCAB):
        made = SHARED_TOKENS.of_target(Proposal(torch.tensor([[x]]), (1,), q))
        if made.lengths == (0,):
            assert x not in SHARED
            emitted += row[x] * p
            continue
        own = made.q.probabilities[0, 0]
        y = int(made.tokens[0, 0])
        assert y == SHARED[x]
        accepted = min(1.0, float(p[y] / own[y])) if row[x] > 0 else 0.0
        emitted[y] += row[x] * accepted
        residual = (p - own).clamp(min=0)
        emitted += row[x] * (1 - accepted) * residual / residual.sum()
    torch.testing.assert_close(emitted, p, atol=1e-6, rtol=0)


# The q of a draw, against an independent computation.


@pytest.mark.parametrize("way", ["temperature-1", "temperature-0.7-top-p-0.6", "top-k-3"])
def test_q_is_the_drafters_distribution_among_the_shared_tokens_in_the_targets_ids(folder, info, drafters, way):
    sampling = SETTINGS[way]
    tokens = [[2, 3, 5, 2, 3]]
    session = translated(drafters["model"], info).open(info_for(1, VOCAB))
    request = DraftRecorder(LogitsToProbs(sampling), RowGenerators([3]), 1, VOCAB, 2, "cpu")
    request.start(tokens, (2,))
    proposal = session.propose(request)
    model = wrap_model(drafters["model"].loaded.model)
    prefix = [4, 5, 4]  # abc ca abc
    for position in range(2):
        logits = uncached_logits(model, [prefix])[0, -1]
        kept = torch.full((VOCAB,), -torch.inf)
        for own, targets in SHARED.items():
            kept[targets] = logits[own]
        expected = adjusted(kept, sampling, [])
        torch.testing.assert_close(proposal.q.probabilities[0, position], expected.float(), atol=1e-5, rtol=1e-4)
        drawn = int(proposal.tokens[0, position])
        prefix.append(next(own for own, targets in SHARED.items() if targets == drawn))


def test_candidates_have_the_targets_ids_without_those_that_are_not_shared():
    row = Candidates(np.array([0, 1, 4, 5]), np.array([-0.9, -0.2, -0.3, -0.7], np.float32))
    carried = SHARED_TOKENS.candidates(row)
    expected = {SHARED[own]: weight for own, weight in zip(row.ids, row.log_weights, strict=True) if own in SHARED}
    assert carried.ids.tolist() == sorted(expected) == [0, 3, 5], "in the target's order"
    assert dict(zip(carried.ids, carried.log_weights, strict=True)) == expected
    assert SHARED_TOKENS.candidates(row) is carried  # what the core prepares is kept with it


@pytest.mark.parametrize(
    "row",
    [
        Candidates(np.array([4, 6]), np.array([0.5, 0.1], np.float32)),
        Candidates(np.array([0, 4]), np.array([-np.inf, 0.1], np.float32)),
    ],
)
def test_without_a_shared_candidate_all_shared_tokens_have_the_same_weight(row):
    carried = SHARED_TOKENS.candidates(row)
    assert carried.ids.tolist() == sorted(SHARED.values())
    assert len(set(carried.log_weights.tolist())) == 1


def test_a_sequence_ends_before_a_token_that_is_not_shared():
    """What follows that token was drafted after it, and would be after another in the target's text."""
    from specdec_drafters.translated.drafter import SharedTokenRequest

    outer = DraftRecorder(LogitsToProbs(SamplingSettings()), RowGenerators([3, 4]), 2, VOCAB, 6, "cpu")
    outer.start([[2, 3], [5]], (6, 6))
    request = SharedTokenRequest(outer, SHARED_TOKENS, [[4], [5]])
    assert request.extend([[3, 4, 2], [1, 2]], None) == [False, True]
    assert request.extend([[2, 2], [5]], None) == [False, True]
    assert request.wants_more()
    assert rows_of(outer.proposal()) == [[SHARED[3]], [SHARED[1], SHARED[2], SHARED[5]]]


def test_a_fork_continues_after_shared_tokens_on_both_sides():
    from specdec_drafters.translated.drafter import SharedTokenRequest

    outer = DraftRecorder(
        LogitsToProbs(SamplingSettings(repetition_penalty=9)), RowGenerators([3]), 1, VOCAB, 6, "cpu"
    )
    outer.start([[0]], (6,))
    request = SharedTokenRequest(outer, SHARED_TOKENS, [[4]])
    fork = request.fork([1], after=[[3, 1]])
    assert fork.tokens == [[4, 3, 1]]
    fork.sample(torch.ones(1, OTHER_VOCAB))
    penalized, q = [SHARED[3], SHARED[1]], fork._outer.proposal().q.probabilities[0, 0]
    assert q[penalized].max() < q[SHARED[5]]
    with pytest.raises(PluginError, match=r"fork\(\) was given"):
        request.fork([1], after=[[4]])


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=0)])
@pytest.mark.parametrize("who", ["model", "bigram", "few"])
def test_a_drafter_reads_back_its_own_q(info, drafters, sampling, who):
    """`proposal()` gives q in the drafter's ids, as a drafter around others needs it."""
    from specdec_drafters.translated.drafter import SharedTokenRequest

    outer = DraftRecorder(LogitsToProbs(sampling), RowGenerators([3, 4]), 2, VOCAB, 3, "cpu")
    outer.start([[2, 3], [5]], (3, 1))
    request = SharedTokenRequest(outer, SHARED_TOKENS, [[4], [5]])
    own = drafters[who].open(info_for(2, OTHER_VOCAB)).propose(request)
    made = request.translated(own)
    again = SHARED_TOKENS.of_target(own)
    assert rows_of(again) == rows_of(made)
    if isinstance(made.q, PointMass):
        return
    from specdec_core.verification import dense

    found, written = dense(again.q, again.tokens, VOCAB), dense(made.q, made.tokens, VOCAB)
    for row, length in enumerate(made.lengths):
        torch.testing.assert_close(found[row, :length], written[row, :length])
    assert outer.made(made)


def test_where_no_shared_token_has_any_probability_all_shared_ones_have_the_same():
    nothing = torch.tensor([0, 0, 0, 0, 0.6, 0, 0.4])
    q = SHARED_TOKENS.probabilities(nothing)
    assert q.sum() == pytest.approx(1)
    assert set(q.nonzero()[:, 0].tolist()) == set(SHARED.values())
    scores = SHARED_TOKENS.logits(nothing.log())
    assert set(scores.isfinite().nonzero()[:, 0].tolist()) == set(SHARED.values())
    assert SHARED_TOKENS.logits(torch.full((OTHER_VOCAB,), torch.nan)).isnan().any()  # the core must see it


# The drafter is told what was committed.


@pytest.mark.parametrize("method", ["tli", "slem"])
@pytest.mark.parametrize("who", ["model", "counting"])
def test_the_drafter_is_told_which_of_its_own_tokens_were_accepted(info, drafters, monkeypatch, who, method):
    """It keeps what it computed for them; what it computed for others would be stale."""
    accepted, lopsided = [], []

    def opened(session_info, open_session=drafters[who].open):
        session = open_session(session_info)
        propose, tell, drafts = session.propose, session.commit, [[]]

        def draft(request):
            proposal = propose(request)
            drafts[:] = rows_of(proposal)
            return proposal

        def told(outcome):
            for new, kept, drafted in zip(outcome.committed, outcome.accepted, drafts, strict=True):
                assert kept == sum(accumulate(map(eq, drafted, new), and_))
                lopsided.append(kept > 0 and drafted[0] != drafted[-1])
            accepted.append(outcome.accepted[0])
            drafts[:] = [[]]  # has its outcome
            tell(outcome)

        monkeypatch.setattr(session, "propose", draft)
        monkeypatch.setattr(session, "commit", told)
        return session

    monkeypatch.setattr(drafters[who], "open", opened)
    for step in range(24):
        if step % 4 == 0:
            session = translated(drafters[who], info, method).open(info_for(1, VOCAB))
            tokens = [[2, 3, step % 5, step // 5]]
        proposal = session.propose(request_for(tokens, [3], seed=step))
        (row,) = rows_of(proposal)
        if step % 2 and len(row) > 1:
            commit(session, tokens, proposal, [0], last=row[1])  # as if it had been drafted first
        else:
            commit(session, tokens, proposal, [len(row)], last=step % VOCAB)
    assert min(accepted) == 0 < max(accepted)
    assert any(lopsided)  # a draft that reads the same from its end would not say which were accepted


class Watched(PromptCopyDrafter):
    """Keeps what it was told, and fails if the request's tokens are others."""

    def open(self, session):
        self.session = Watching(super().open(session))
        self.info = session
        return self.session


class Watching(type(PromptCopyDrafter(PromptCopyConfig(), TargetInfo(6)).open(info_for(1, 6)))):
    def __init__(self, inner):
        self.__dict__.update(inner.__dict__)
        self.rows: list[list[int]] | None = None
        self.events: list[str] = []

    def propose(self, request):
        if self.rows is None:
            self.rows = [list(row) for row in request.tokens]
        assert self.rows == [list(row) for row in request.tokens]
        return super().propose(request)

    def commit(self, outcome):
        self.events.append("commit")
        for row, new in zip(self.rows, outcome.committed, strict=True):
            row += new

    def rollback(self, lengths):
        self.events.append("rollback")
        super().rollback(lengths)
        for row, length in zip(self.rows, lengths, strict=True):
            del row[length:]


def test_the_drafter_is_rolled_back_where_its_tokens_change(info, own_info):
    watched = Watched(PromptCopyConfig(min_match=1), own_info)
    session = translated(watched, info).open(info_for(2, VOCAB))
    tokens = [[2], [0, 0]]
    proposal = session.propose(request_for(tokens, [2, 2]))
    commit(session, tokens, proposal, [0, 0], last=3)  # ab + c is abc, one token of the drafter; aa + c is not
    session.propose(request_for(tokens, [2, 2]))
    assert watched.session.rows == [[4], [1, 1, 0]]
    assert watched.session.events == ["commit", "rollback", "commit"]
    commit(session, tokens, Proposal.empty(2), [0, 0], last=3)
    commit(session, tokens, Proposal.empty(2), [0, 0], last=0)  # not asked in between
    session.propose(request_for(tokens, [2, 2]))
    assert watched.session.rows == [[4, 5], [1, 1, 0, 5]]


def test_a_text_longer_than_expected_opens_the_drafters_session_again(info, own_info):
    watched = Watched(PromptCopyConfig(min_match=1), own_info)
    long = info_for(1, VOCAB)
    session = translated(watched, info).open(type(long)(1, VOCAB, capacity=4, max_gamma=2, device="cpu"))
    first = watched.session
    tokens = [[0, 1]]
    session.propose(request_for(tokens, [2]))
    tokens[0] += [1, 1, 1, 1, 1, 1, 1, 1]
    assert watched.info.capacity == 8
    session.propose(request_for(tokens, [2]))
    assert watched.session is not first
    assert watched.info.capacity >= 10


@pytest.mark.parametrize("method", ["tli", "slem"])
def test_with_one_tokenizer_it_drafts_what_the_drafter_alone_drafts(method):
    target = load_model("builtin:target")
    alone = TransformerDrafter(TransformerConfig(model="builtin:drafter"), target.info())
    prompt = "import os\nfrom pathlib import Path\n\n\ndef main(argv):\n"
    texts = []
    for drafter in (alone, translated(alone, target.info(), method)):
        decoder = Decoder(target, drafter, gamma=4, temperature=0, strict=True)
        texts.append(decoder.generate([prompt], max_new_tokens=30))
    (one, other) = texts
    assert one.sequences[0].tokens == other.sequences[0].tokens
    assert one.metrics.target_calls == other.metrics.target_calls


@pytest.mark.parametrize("who", ["model", "hierarchy"])
def test_a_constraint_holds_for_the_targets_tokens_and_not_for_the_drafters(target, info, drafters, who):
    """In a hierarchy, an inner loop draws the drafter's own tokens, which the constraint knows nothing of."""
    tokenizer = target_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()  # which llguidance knows
    spelled = wrap_model(target.model, tokenizer)
    decoder = Decoder(spelled, translated(drafters[who], info), gamma=Gamma(3), temperature=1, strict=True)
    result = decoder.generate([[2, 3]] * 40, constraint={"regex": "(ca|a){20,}"}, max_new_tokens=8, seed=2)
    assert result.metrics.accepted
    texts = {one.text for one in result}
    assert len(texts) > 3
    assert all(re.fullmatch("(ca|a)+c?", text) for text in texts), texts


def test_the_result_says_that_a_text_is_too_long_in_the_drafters_tokens(target, info, drafters, monkeypatch):
    monkeypatch.setattr(drafters["model"], "max_length", 4)
    decoder = Decoder(target, translated(drafters["model"], info), gamma=3, strict=True)
    with pytest.warns(PluginWarning, match="takes at most 4 tokens"):
        decoder.generate([[2, 3]], max_new_tokens=10, ignore_eos=True)
