"""What a trace shows is what decided: p, q and r of each draft token, and the distribution after them."""

import re
from html import unescape
from itertools import accumulate

import pytest

from specdec_core.decoding import verification_record
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import TokenTree
from specdec_core.interface.errors import ArgumentError
from specdec_core.trace.figure import trace_html, trace_page
from specdec_core.verification import SpeculativeSampling, density
from tests.lossless import VOCAB, small_target
from tests.toys import CountingDrafter, Gamma, SparseDrafter, TableDrafter

PROMPTS = [[1, 2], [3, 1, 2]]
TREE = TokenTree.from_widths((3, 2))
TOYS = {"dense": TableDrafter, "point-mass": CountingDrafter, "sparse": SparseDrafter}


@pytest.fixture(scope="module", params=["gpt2", pytest.param("t5", marks=pytest.mark.slow)])
def target(request, device):
    return small_target(device, request.param)


@pytest.fixture(autouse=True)
def _whole_distributions(monkeypatch):
    monkeypatch.setattr(verification_record, "_TOP", VOCAB)


def traced(target, toy=TableDrafter, **settings):
    """Return the trace of a decoding, whose tokens are those of one that is not watched."""
    plain, trace = TraceObserver(), TraceObserver(probabilities=True)
    texts = []  # of a new drafter each: some have a generator of their own
    for observer in (plain, trace):
        decoder = Decoder(target, toy(VOCAB), strict=True, **{"gamma": 3, **settings})
        found = decoder.generate(PROMPTS, max_new_tokens=30, seed=5, ignore_eos=True, observers=[observer])
        texts.append([one.tokens for one in found])
    assert texts[0] == texts[1]
    assert all(report.verification is None for report in plain.reports)
    return trace


def rows_of(trace):
    """Yield the report, the row and the verification of each sequence in each step in which it was decoded."""
    for report in trace.reports:
        for row, found in enumerate(report.verification):
            if report.outcome.committed[row]:
                yield report, row, found


@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("tree", [None, TREE], ids=["line", "tree"])
def test_the_numbers_decide_and_draw_the_tokens(target, toy, tree):
    if tree is not None and not TOYS[toy].drafts_trees:
        pytest.skip("it drafts lines")
    gamma = Gamma(3, 0, 2) if tree is None else Gamma(len(tree), tree=tree)
    trace = traced(target, TOYS[toy], gamma=gamma)
    verdicts = []
    for report, row, found in rows_of(trace):
        kept = [test.token for test in found.tests if test.accepted]
        *_, last = committed = list(report.outcome.committed[row])
        for test in found.tests:
            assert test.accepted == (test.r * test.q < test.p)
            assert (test.token, test.p, test.q) in test.top
        verdicts += [test.accepted for test in found.tests]
        if len(committed) <= len(kept):
            assert kept[: len(committed)] == committed  # it ended inside of the draft
            continue
        assert [*kept, last] == committed
        # All tokens are among the top ones: inversion gives the token.
        shares = dict(found.top)
        sums = list(accumulate(shares.get(token, 0.0) for token in range(VOCAB)))
        assert abs(sums[-1] - 1) < 1e-5
        assert last == next(token for token, total in enumerate(sums) if total > found.r * sums[-1])
    assert {True, False} == set(verdicts)


@pytest.mark.parametrize("toy", TOYS)
def test_they_are_the_numbers_that_the_rule_was_given(target, toy, monkeypatch):
    given = []
    sample = SpeculativeSampling.sample

    def spy(self, proposal, p, lenience, uniforms):
        given.append((proposal, p.clone(), uniforms.clone(), density(proposal.q, proposal.tokens).clone()))
        return sample(self, proposal, p, lenience, uniforms)

    monkeypatch.setattr(SpeculativeSampling, "sample", spy)
    observer = TraceObserver(probabilities=True)
    decoder = Decoder(target, TOYS[toy](VOCAB), gamma=Gamma(3, 1), strict=True)
    decoder.generate(PROMPTS, max_new_tokens=60, ignore_eos=True, observers=[observer])
    if not given:
        pytest.skip("the rule is part of a captured pass")
    compared = 0
    for report, (proposal, p, uniforms, q) in zip(observer.reports, given, strict=True):
        for row, found in enumerate(report.verification):
            assert found.r == uniforms[row, -1]
            for k, test in enumerate(found.tests):
                x = proposal.tokens[row, k]
                numbers = (int(x), float(p[row, k, x]), float(q[row, k]), float(uniforms[row, k]))
                assert (test.token, test.p, test.q, test.r) == numbers
                assert all(share == p[row, k, token] for token, share, _ in test.top)
                compared += 1
    assert compared > 20


@pytest.mark.parametrize("tree", [None, TREE], ids=["line", "tree"])
def test_greedy_p_is_one_hot(target, tree):
    gamma = Gamma(3) if tree is None else Gamma(len(tree), tree=tree)
    trace = traced(target, gamma=gamma, temperature=0)
    for report, row, found in rows_of(trace):
        assert found.r is None
        assert all(test.p == test.accepted and test.r is None for test in found.tests)
        committed = report.outcome.committed[row]
        if len(committed) > report.outcome.accepted[row]:
            assert found.top == ((committed[-1], 1.0),)


def test_lenience_is_part_of_the_test(target):
    sampled = traced(target, lenience=0.4)
    tests = [test for *_, found in rows_of(sampled) for test in found.tests]
    assert all(test.accepted == (test.r * test.lenience * test.q < test.p) for test in tests)
    assert {test.lenience for test in tests} == {0.4}
    assert any(test.r * test.q >= test.p and test.accepted for test in tests)
    greedy = traced(target, lenience=0.4, temperature=0)
    tests = [test for *_, found in rows_of(greedy) for test in found.tests]
    assert all(test.accepted == (test.p >= test.lenience * max(p for _, p, _ in test.top)) for test in tests)
    assert "max p = 0.4 × " in trace_html(greedy.traces()[0])


def test_another_rule_is_not_explained_by_algorithm_1(target):
    trace = traced(target, rule="block")
    assert not any(found.algorithm_1 for *_, found in rows_of(trace))
    page = trace_html(trace.traces()[0])
    assert "the acceptance rule decided with p = " in page
    assert "r = " not in page


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_figure_has_these_numbers(target, temperature):
    trace = traced(target, temperature=temperature)
    for row, plain in enumerate(trace.traces()):
        html = trace_html(plain)
        tests = [test for _, at, found in rows_of(trace) if at == row for test in found.tests]
        said = re.findall(r"<p>“ (\d+)” is (accepted|rejected): (.*?)\.</p>", html)
        assert [(int(token), fate) for token, fate, _ in said] == [
            (test.token, "accepted" if test.accepted else "rejected") for test in tests
        ]
        for test, (_, fate, words) in zip(tests, said, strict=True):
            if temperature == 0:
                assert ("is the most" in words) == test.accepted
                continue
            r, sign, p, q, ratio = re.fullmatch(
                r"r = (\S+) ([<≥]) p/q = (\S+)/(\S+) = (\S+)", unescape(words)
            ).groups()
            assert (sign == "<") == (fate == "accepted") == (test.r < test.p / test.q)
            wanted = (test.r, test.p, test.q, test.p / test.q)
            assert tuple(map(float, (r, p, q, ratio))) == pytest.approx(wanted, rel=1e-3, abs=1e-4)
        assert html.count("<section ") == sum(at == row for _, at, _ in rows_of(trace))
        whole = re.search(r'<p class="whole".*?</p>', html)[0]
        text = re.sub(r"<[^>]+>", "", whole).split()
        assert list(map(int, text)) == [token for one in trace.reports for token in one.outcome.committed[row]]


def test_a_first_token_that_a_constraint_forces_has_no_numbers():
    pytest.importorskip("llguidance")
    from specdec_core import load_model

    trace = TraceObserver(probabilities=True)
    decoder = Decoder(load_model("builtin:target"), "prompt-copy", gamma=3, temperature=0, strict=True)
    result = decoder.generate("x = ", constraint={"regex": "released [0-9]"}, observers=[trace])
    items = [item for step in trace.traces()[0]["steps"] for item in step["items"]]
    assert items[0]["fate"] == "forced"
    assert "top" not in items[0]
    assert "".join(item["text"] for item in items if item["fate"] != "rejected").startswith(result.text)


def test_markup_in_tokens_is_text():
    item = {
        "text": "</script><b>",
        "fate": "accepted",
        "p": 1.0,
        "q": 1.0,
        "r": 0.5,
        "l": 1.0,
        "algorithm_1": True,
    }
    step = {
        "begin": 0.0,
        "draft": 0.1,
        "verify": 0.1,
        "seconds": 0.2,
        "items": [{**item, "top": [["<i>", 1.0, 1.0]]}],
    }
    page = trace_page([{"tokens": 1, "greedy": False, "steps": [step]}], "<title>")
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in page


def test_a_notebook_shows_what_has_probabilities(target):
    decoder = Decoder(target, TableDrafter(VOCAB), gamma=3, temperature=0, strict=True)
    assert traced(target)._repr_html_().count('<figure class="specdec-trace"') == len(PROMPTS)
    plain, beams = TraceObserver(), TraceObserver(probabilities=True)
    decoder.generate(PROMPTS, max_new_tokens=4, observers=[plain])
    decoder.generate(PROMPTS, max_new_tokens=4, observers=[beams], beams=2)
    for one in (plain, beams):
        assert one._repr_html_() is None
        with pytest.raises(ArgumentError, match=r"TraceObserver\(probabilities=True\)"):
            one.traces()
