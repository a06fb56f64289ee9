"""Scores are those of the libraries, and the test of a difference keeps its word."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import random
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import binom, permutation_test

from specdec_core.study.report import resampling
from specdec_core.study.report.quality import (
    METRICS,
    TESTED,
    Output,
    agreement,
    assess,
    first_difference,
    holm,
    missing_library,
    score,
)
from specdec_core.study.report.quality import difference as difference_module
from specdec_core.study.report.quality.difference import Difference, differences, how_tested
from specdec_core.study.report.quality.scores import _Words, count
from tests.docs.pages import ROOT, blocks

WORDS = ["der", "die", "Größe", "Übersicht", "Datei", "öffnen", "nicht", "Fehler", "beim", "f()", ",", "."]


def written(texts):
    return [Output(tuple(map(ord, text)), text) for text in texts]


def text(chance, words):
    return " ".join(chance.choice(WORDS) for _ in range(words))


def worse(chance, of, share):
    """The text with a share of its words replaced by any."""
    return " ".join(word if chance.random() > share else chance.choice(WORDS) for word in of.split())


def corpus(seed, prompts=30, references=(1,), share=0.4, longest=20):
    """Outputs, and references of which there are as many as the prompt's turn in `references` says."""
    chance = random.Random(seed)
    wanted = [
        [text(chance, chance.randint(1, longest)) for _ in range(references[n % len(references)])]
        for n in range(prompts)
    ]
    return [worse(chance, texts[0], share) for texts in wanted], wanted


# Scores


def test_bleu_and_rouge_by_hand():
    scores = score(["the cat sat on the mat"], [["the cat sat on a mat"]])
    # Of 6, 5, 4 and 3 n-grams, 5, 3, 2 and 1 are in the reference; the lengths are the same.
    assert scores.corpus["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert scores.corpus["rouge1"] == pytest.approx(100 * 5 / 6)
    assert scores.corpus["rouge2"] == pytest.approx(100 * 3 / 5)
    assert scores.corpus["rougeL"] == pytest.approx(100 * 5 / 6)


def test_bleu_of_a_short_output_by_hand():
    scores = score(["a b c d e"], [["a b c d e f g"]])
    assert scores.corpus["bleu"] == pytest.approx(100 * math.exp(1 - 7 / 5))


def test_chrf_by_hand():
    # Of 3 characters 2 are in the other, of 2 pairs 1, of 1 triple none; precision and recall are the same.
    assert score(["abc"], [["abd"]]).corpus["chrf"] == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


def test_the_same_texts_score_100_and_others_nothing():
    same = ["Die Größe der Datei ist unbekannt.", "Es gibt keinen Fehler mehr."]
    assert score(same, [[each] for each in same]).corpus == pytest.approx(dict.fromkeys(METRICS, 100.0))
    assert score(["", "xyz"], [[each] for each in same]).corpus == dict.fromkeys(METRICS, 0.0)
    assert score(["", ""], [[each] for each in same]).corpus == dict.fromkeys(METRICS, 0.0)


@pytest.mark.parametrize("output", ["a b c", "no word of it is there"])
def test_bleu_is_0_without_a_match_or_without_four_words(output):
    assert BLEU().corpus_score([output], [["a b c"]]).score == 0
    assert score([output], [["a b c"]]).corpus["bleu"] == 0


@pytest.mark.parametrize("references", [(1,), (3,), (2, 1, 3)])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.95])
@pytest.mark.parametrize("longest", [2, 20])
def test_scores_are_those_of_the_libraries(references, share, longest):
    outputs, wanted = corpus(7, references=references, share=share, longest=longest)
    outputs[4] = ""
    scores = score(outputs, wanted)
    most = max(map(len, wanted))
    streams = [[texts[n] if n < len(texts) else None for texts in wanted] for n in range(most)]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        assert scores.corpus[name] == pytest.approx(metric.corpus_score(outputs, streams).score, abs=1e-9)
        assert scores.signatures[name] == str(metric.get_signature())
    assert ("nrefs:var" in scores.signatures["bleu"]) == (len(references) > 1)
    chrf = [CHRF().sentence_score(each, texts).score for each, texts in zip(outputs, wanted, strict=True)]
    assert scores.by_prompt["chrf"] == pytest.approx(chrf, abs=1e-9)


def test_rouge_is_the_librarys_on_english():
    chance = random.Random(3)
    names = ["the", "first", "line", "of", "a", "file_name,", "None", "(see", "PEP-8)", "if", "x2", "is"]
    wanted = [[" ".join(chance.choices(names, k=9)) for _ in range(2)] for _ in range(20)]
    outputs = [" ".join(chance.choices(names, k=7)) for _ in wanted]
    scores = score(outputs, wanted)
    own = RougeScorer(["rouge1", "rouge2", "rougeL"])
    theirs = [own.score_multi(texts, each) for each, texts in zip(outputs, wanted, strict=True)]
    for name in own.rouge_types:
        mean = sum(each[name].fmeasure for each in theirs) / len(theirs)
        assert scores.corpus[name] == pytest.approx(100 * mean)
    assert scores.by_prompt["rougeL"] == pytest.approx([100 * each["rougeL"].fmeasure for each in theirs])


def test_rouge_knows_letters_that_english_does_not_have():
    words = _Words().tokenize
    assert words("Die Größe ÄNDERN: naïve_Übersicht2") == ["die", "größe", "ändern", "naïve", "übersicht2"]
    assert words("o\u0308ffnen") == words("öffnen") == ["öffnen"]
    assert words("हिन्दी") == ["हिन्दी"]
    assert words("") == words(" - ") == []
    # What the library's own makes of them: "grün" and "grau" would have a word in common.
    assert tokenize("grün", None) == ["gr", "n"]
    assert score(["grün"], [["grn gr n"]]).corpus["rouge1"] == 0


def test_the_best_of_several_references_counts_and_their_order_does_not():
    outputs, wanted = corpus(5, references=(1,))
    poor = ["QQ", "XX YY"]
    alone = score(outputs, wanted).corpus
    for among in ([[*poor, *texts] for texts in wanted], [[*texts, *poor] for texts in wanted]):
        assert score(outputs, among).by_prompt == score(outputs, wanted).by_prompt
        assert score(outputs, among).corpus["rouge2"] == alone["rouge2"]
    assert score(["b c"], [["a b", "c b c"]]).corpus["rouge1"] == pytest.approx(80)


@pytest.mark.parametrize(
    ("outputs", "references", "said"),
    [
        ([], [], "at least one prompt"),
        (["a"], [["a"], ["b"]], "1 outputs to be paired with 2"),
        (["a", "b"], [["a"], []], r"prompt 1 \(from 0\) has no reference"),
    ],
)
def test_what_cannot_be_scored_is_refused(outputs, references, said):
    with pytest.raises(ValueError, match=said):
        score(outputs, references)


def test_nothing_is_printed(capfd, caplog):
    outputs = written(f"{n} sentences that end in a blank and a full stop ." for n in range(120))
    with caplog.at_level(logging.INFO):
        assess(outputs, outputs[::-1], [[each.text] for each in outputs], greedy=False)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


# Agreement


def test_agreement_is_of_tokens_and_says_where_it_ends():
    baseline = [[1, 2, 3], [4, 5], [6]]
    assert agreement(baseline, baseline) == 1.0
    assert first_difference(baseline, [(1, 2, 3), (4, 5), (6,)]) is None
    assert agreement([[1, 2, 3], [4, 9], [6, 7]], baseline) == pytest.approx(1 / 3)
    assert first_difference([[1, 2, 3], [4, 9], [6, 7]], baseline) == (1, 1)
    assert first_difference([[1, 2, 3], [4, 5], [6, 7]], baseline) == (2, 1)
    assert first_difference([[], [4, 5], [6, 7]], baseline) == (0, 0)
    with pytest.raises(ValueError, match="2 outputs to be paired with 3"):
        agreement(baseline[:2], baseline)


# Differences


def counted(seed, prompts, share, other=None):
    """The counts of outputs of two systems that get a share of the words wrong."""
    outputs, wanted = corpus(seed, prompts, share=share)
    chance = random.Random(seed + 1000)
    others = [worse(chance, texts[0], share if other is None else other) for texts in wanted]
    return count(outputs, wanted), count(others, wanted)


@pytest.mark.parametrize("prompts", [6, 30])
def test_a_run_with_plains_outputs_does_not_differ(prompts):
    run, _ = counted(1, prompts, 0.4)
    assert differences(run, run) == dict.fromkeys(TESTED, Difference(0.0, 0.0, 0.0, 1.0))


@pytest.mark.parametrize("prompts", [6, 9, 13, 14])
def test_the_p_value_is_scipys(prompts):
    run, baseline = counted(2, prompts, 0.3, 0.5)
    for name, found in differences(run, baseline).items():
        mine, theirs, value = run[name].rows, baseline[name].rows, run[name].value

        def statistic(sign, axis, mine=mine, theirs=theirs, value=value):
            kept = sign[..., None] > 0
            first = np.where(kept, mine, theirs).sum(axis=-2)
            return np.round(value(first) - value((mine + theirs).sum(axis=0) - first), 9)

        exact = permutation_test(
            (np.ones(prompts),), statistic, permutation_type="samples", vectorized=True, n_resamples=2**prompts
        )
        assert found.difference == pytest.approx(exact.statistic)
        # With 14 prompts there are more ways than are tried.
        assert found.p == pytest.approx(exact.pvalue, abs=1e-12 if prompts <= 13 else 0.02)


def test_the_differences_are_those_of_the_scores_and_lie_in_their_intervals():
    outputs, wanted = corpus(3, 25)
    others, _ = corpus(3, 25, share=0.7)
    mine, theirs = score(outputs, wanted), score(others, wanted)
    for name, found in differences(count(outputs, wanted), count(others, wanted)).items():
        assert found.difference == pytest.approx(mine.corpus[name] - theirs.corpus[name], abs=1e-8)
        assert found.low < found.difference < found.high


def test_which_of_the_two_is_the_run_changes_the_sign_alone():
    run, baseline = counted(4, 40, 0.4)
    there, back = differences(run, baseline), differences(baseline, run)
    for name in TESTED:
        mirrored = Difference(-back[name].difference, -back[name].high, -back[name].low, back[name].p)
        assert asdict(there[name]) == pytest.approx(asdict(mirrored), abs=1e-9)


def test_the_same_comparison_gives_the_same_numbers():
    run, baseline = counted(5, 40, 0.4)
    assert differences(run, baseline) == differences(run, baseline)


def test_few_prompts():
    # With 6, all better than the other: only this way and its mirror image are as far from 0.
    outputs, wanted = corpus(6, 6, share=0.0)
    none = count(["xyz"] * 6, wanted)
    assert differences(count(outputs, wanted), none)["chrf"].p == 2 / 2**6 < 0.05
    fewer = differences(count(outputs[:5], wanted[:5]), count(["xyz"] * 5, wanted[:5]))["chrf"]
    assert fewer == Difference(fewer.difference, None, None, None)
    assert fewer.difference > 50
    assert 2 / 2**5 > 0.05


@pytest.mark.parametrize("prompts", [14, 1000])
def test_as_many_swaps_as_promised_of_half_the_prompts(prompts):
    parts = list(difference_module._signs(prompts))
    assert sum(map(len, parts)) == 9999
    assert (len(parts) > 1) == (prompts == 1000)
    signs = np.concatenate(parts)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / math.sqrt(signs.size)
    assert len(np.unique(signs, axis=0)) > 0.7 * min(9999, 2**prompts)
    assert str(9999) in how_tested(prompts)


def test_p_is_never_0():
    outputs, wanted = corpus(6, 40, share=0.0)
    found = differences(count(outputs, wanted), count(["xyz"] * 40, wanted))
    assert [each.p for each in found.values()] == [1 / 10_000] * 3


def test_all_ways_are_tried_where_they_are_few():
    (signs,) = difference_module._signs(6)
    assert len(np.unique(signs, axis=0)) == 2**6
    assert "all64" in how_tested(6)


@pytest.fixture(scope="module")
def pool():
    """Ten outputs of one system for each of 40 prompts, some of which are harder."""
    chance = random.Random(11)
    wanted = [[text(chance, chance.randint(4, 20))] for _ in range(40)]
    hard = [chance.uniform(0.2, 0.7) for _ in wanted]
    return [
        count([worse(chance, texts[0], share) for texts, share in zip(wanted, hard, strict=True)], wanted)
        for _ in range(10)
    ]


@pytest.mark.parametrize("prompts", [10, 40])
def test_false_alarms_are_as_rare_as_promised_and_intervals_hold_0(pool, prompts, monkeypatch):
    monkeypatch.setattr(difference_module, "_SWAPS", 999)  # which is coarser and takes a tenth of the time
    monkeypatch.setattr(resampling, "RESAMPLES", 400)
    chance, trials = np.random.default_rng(prompts), 200
    rows = {name: np.stack([each[name].rows[:prompts] for each in pool]) for name in TESTED}
    position = np.arange(prompts)
    alarms, outside = dict.fromkeys(TESTED, 0), dict.fromkeys(TESTED, 0)
    for _ in range(trials):
        # Two different outputs of the one system after every prompt.
        one = chance.integers(10, size=prompts)
        two = (one + chance.integers(1, 10, size=prompts)) % 10
        run, baseline = (
            {n: replace(pool[0][n], rows=rows[n][some, position]) for n in TESTED} for some in (one, two)
        )
        for name, found in differences(run, baseline).items():
            alarms[name] += found.p < 0.05
            outside[name] += not found.low <= 0 <= found.high
    least, most = binom.ppf([0.001, 0.999], trials, 0.05)
    assert all(least <= alarms[name] <= most for name in TESTED), alarms
    # An interval of few prompts is a little too narrow for a ratio of sums, as BLEU is.
    assert all(outside[name] <= binom.ppf(0.999, trials, 0.08) for name in TESTED), outside


def test_a_clearly_worse_run_is_found():
    found = [differences(*counted(seed, 40, 0.7, 0.3)) for seed in range(8)]
    for name in TESTED:
        assert all(each[name].difference < 0 and each[name].high < 0 for each in found)
        assert all(each[name].p < 0.05 for each in found)


def test_holms_adjustment():
    adjusted = holm([0.01, None, 0.04, 0.03, 0.005])
    assert adjusted[1] is None
    assert [adjusted[n] for n in (0, 2, 3, 4)] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()
    assert holm([None]) == (None,)


# All of it


def test_a_sampled_run_is_compared_with_plain_sampling():
    outputs, wanted = corpus(8, 20)
    others, _ = corpus(8, 20, share=0.6)
    others[3] = outputs[3]
    quality = assess(written(outputs), written(others), wanted, greedy=False)
    scores = score(outputs, wanted)
    assert {name: getattr(quality, name) for name in METRICS} == scores.corpus
    assert quality.references == 20
    same = sum(a == b for a, b in zip(outputs, others, strict=True))
    assert quality.exact == same / 20 < 1
    assert quality.first_difference is not None
    assert quality.differences == differences(count(outputs, wanted), count(others, wanted))
    assert quality.signatures == scores.signatures | {"differences": how_tested(20)}
    assert quality.note is None
    assert json.loads(json.dumps(asdict(quality)))["differences"]["bleu"]["p"] == quality.differences["bleu"].p


def test_an_argmax_run_has_nothing_to_test():
    outputs, wanted = corpus(8, 20)
    quality = assess(written(outputs), written(outputs), wanted, greedy=True)
    assert (quality.exact, quality.first_difference, quality.differences) == (1.0, None, {})
    assert "differences" not in quality.signatures
    assert quality.bleu == score(outputs, wanted).corpus["bleu"]


def test_prompts_without_a_reference_are_not_scored_but_agree():
    outputs, wanted = corpus(9, 12)
    others = [*outputs[:6], *["xyz"] * 6]
    some = [*wanted[:6], *[[]] * 6]
    quality = assess(written(outputs), written(others), some, greedy=False)
    assert (quality.references, quality.exact, quality.first_difference) == (6, 0.5, (6, 0))
    assert quality.bleu == score(outputs[:6], wanted[:6]).corpus["bleu"]
    assert quality.differences["bleu"].p == 1.0
    without = assess(written(outputs), written(others), [()] * 12, greedy=False)
    assert (without.references, without.exact, without.bleu, without.note) == (0, 0.5, None, None)
    assert without.differences == without.signatures == {}


def test_too_few_prompts_are_said():
    outputs, wanted = corpus(10, 5)
    quality = assess(written(outputs), written(outputs[::-1]), wanted, greedy=False)
    assert quality.differences["chrf"].p is None
    assert "references for 5 prompts" in quality.note
    assert "at least 6" in quality.note


@pytest.mark.parametrize(
    ("gone", "named"),
    [(["sacrebleu"], "need sacrebleu:"), (["sacrebleu", "rouge_score"], "need sacrebleu and rouge-score:")],
)
def test_without_the_libraries_the_agreement_stays_and_the_way_is_said(monkeypatch, gone, named):
    assert missing_library() is None
    for module in gone:
        monkeypatch.setitem(sys.modules, module, None)
    outputs, wanted = corpus(12, 8)
    quality = assess(written(outputs), written(outputs), wanted, greedy=False)
    assert (quality.exact, quality.references, quality.bleu, quality.differences) == (1.0, 8, None, {})
    assert quality.note == missing_library()
    assert named in quality.note
    assert "pip install 'specdec-core[eval]'" in quality.note
    assert assess(written(outputs), written(outputs), [()] * 8, greedy=False).note is None


def test_outputs_that_do_not_go_together_are_refused():
    outputs, wanted = corpus(13, 8)
    with pytest.raises(ValueError, match="8 outputs to be paired with 7"):
        assess(written(outputs), written(outputs), wanted[:7], greedy=True)
    with pytest.raises(ValueError, match="8 outputs to be paired with 7"):
        assess(written(outputs), written(outputs[:7]), wanted, greedy=True)


def test_the_page_shows_what_its_example_prints():
    page = ROOT / "docs" / "quality.md"
    (code,) = [block.text for block in blocks("python") if block.page == page]
    (shown,) = [block.text for block in blocks("text") if block.page == page]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "docs/quality.md", "exec"), {})
    assert printed.getvalue() == shown
