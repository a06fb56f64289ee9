"""Scores are those of the libraries; differences are those of single outputs."""

import json
import logging
import random
import sys
from dataclasses import asdict

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import ttest_rel

from specdec_core.study.report.quality import METRICS, TESTED, _Words, assess, missing_library, score
from specdec_core.study.run.finished_repeats import Output

WORDS = ["der", "die", "Größe", "Übersicht", "Datei", "öffnen", "nicht", "Fehler", "beim", "f()", ",", "."]


def written(texts):
    return [Output(tuple(map(ord, text)), text) for text in texts]


def assessed(outputs, others, references, greedy=False):
    return assess({1: written(outputs)}, {1: written(others)}, references, greedy=greedy)


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


def test_scores_by_hand():
    scores = score(["the cat sat on the mat"], [["the cat sat on a mat"]])
    # Of 6, 5, 4 and 3 n-grams, 5, 3, 2 and 1 are in the reference; the lengths are the same.
    assert scores.corpus["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert scores.corpus["rouge1"] == pytest.approx(100 * 5 / 6)
    assert scores.corpus["rouge2"] == pytest.approx(100 * 3 / 5)
    assert scores.corpus["rougeL"] == pytest.approx(100 * 5 / 6)


@pytest.mark.parametrize("references", [(1,), (2, 1, 3)])
def test_scores_are_those_of_the_libraries(references):
    outputs, wanted = corpus(7, references=references)
    outputs[4] = ""
    scores = score(outputs, wanted)
    most = max(map(len, wanted))
    streams = [[texts[n] if n < len(texts) else None for texts in wanted] for n in range(most)]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        assert scores.corpus[name] == metric.corpus_score(outputs, streams).score
        assert scores.signatures[name] == str(metric.get_signature())
    assert ("nrefs:var" in scores.signatures["bleu"]) == (len(references) > 1)


def test_rouge_is_the_librarys_on_english():
    chance = random.Random(3)
    names = ["the", "first", "line", "of", "a", "file_name,", "None", "(see", "PEP-8)", "if", "x2", "is"]
    wanted = [[" ".join(chance.choices(names, k=9)) for _ in range(2)] for _ in range(20)]
    outputs = [" ".join(chance.choices(names, k=7)) for _ in wanted]
    scores = score(outputs, wanted)
    own = RougeScorer(["rouge1", "rouge2", "rougeL"])
    theirs = [own.score_multi(texts, each) for each, texts in zip(outputs, wanted, strict=True)]
    for name in own.rouge_types:
        assert scores.corpus[name] == pytest.approx(100 * np.mean([each[name].fmeasure for each in theirs]))
    assert scores.by_prompt["rougeL"] == pytest.approx([100 * each["rougeL"].fmeasure for each in theirs])


def test_rouge_knows_letters_that_english_does_not_have():
    words = _Words().tokenize
    assert words("Die Größe ÄNDERN: naïve_Übersicht2") == ["die", "größe", "ändern", "naïve", "übersicht2"]
    assert words("o\u0308ffnen") == words("öffnen") == ["öffnen"]
    assert words("हिन्दी") == ["हिन्दी"]


def test_nothing_is_printed(capfd, caplog):
    outputs = [f"{n} sentences that end in a blank and a full stop ." for n in range(120)]
    with caplog.at_level(logging.INFO):
        assessed(outputs, outputs[::-1], [[each] for each in outputs])
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_agreement_is_of_tokens_in_all_repeats_and_says_where_it_ends():
    baseline = [Output(tokens, None) for tokens in ((1, 2, 3), (4, 5), (6,))]
    longer = [*baseline[:2], Output((6, 7), None)]
    other = [baseline[0], Output((4, 9), None), longer[2]]
    for outputs, exact, first in ((baseline, 1, None), (longer, 2 / 3, (2, 1)), (other, 1 / 3, (1, 1))):
        found = assess({1: outputs}, {1: baseline}, [()] * 3, greedy=True)
        assert (found.exact, found.first_difference) == (pytest.approx(exact), first)
    both = assess({1: baseline, 2: other, 3: other}, {1: baseline, 2: baseline}, [()] * 3, greedy=True)
    assert (both.exact, both.first_difference) == (pytest.approx(4 / 6), (1, 1))
    assert assess({}, {1: baseline}, [()] * 3, greedy=True) is None
    assert Output((), "abc", count=3).first_difference(Output((), "abd", count=3)) == 2


def test_a_sampled_run_is_compared_with_plain_sampling():
    outputs, wanted = corpus(8, 20)
    others = [worse(random.Random(n), texts[0], 0.6) for n, texts in enumerate(wanted)]
    others[3] = outputs[3]
    quality, scores, theirs = assessed(outputs, others, wanted), score(outputs, wanted), score(others, wanted)
    assert {name: getattr(quality, name) for name in METRICS} == scores.corpus
    assert quality.references == 20
    assert quality.exact < 1
    for name in TESTED:
        test = ttest_rel(scores.by_prompt[name], theirs.by_prompt[name])
        one = quality.differences[name]
        assert (one.p, one.low, one.high) == pytest.approx((test.pvalue, *test.confidence_interval()))
        assert one.value == pytest.approx(np.mean(scores.by_prompt[name]) - np.mean(theirs.by_prompt[name]))
    assert json.loads(json.dumps(asdict(quality)))["differences"]["chrf"]["p"] == quality.differences["chrf"].p


def test_a_greedy_run_has_nothing_to_test():
    outputs, wanted = corpus(8, 20)
    quality = assessed(outputs, outputs, wanted, greedy=True)
    assert (quality.exact, quality.first_difference, quality.differences) == (1.0, None, {})
    assert quality.bleu == score(outputs, wanted).corpus["bleu"]


def test_prompts_without_a_reference_are_not_scored_but_agree():
    outputs, wanted = corpus(9, 12)
    quality = assessed(outputs, [*outputs[:6], *["xyz"] * 6], [*wanted[:6], *[[]] * 6])
    assert (quality.references, quality.exact, quality.first_difference) == (6, 0.5, (6, 0))
    assert quality.bleu == score(outputs[:6], wanted[:6]).corpus["bleu"]
    assert quality.differences["chrf"].p == 1.0


def test_too_few_prompts_are_not_tested():
    outputs, wanted = corpus(10, 5)
    quality = assessed(outputs, outputs[::-1], wanted)
    assert quality.differences["chrf"].p is None
    assert "5 prompts" in quality.note


@pytest.mark.parametrize("gone", [["sacrebleu"], ["sacrebleu", "rouge_score"]])
def test_without_the_libraries_the_agreement_stays(monkeypatch, gone):
    assert missing_library() is None
    for module in gone:
        monkeypatch.setitem(sys.modules, module, None)
    outputs, wanted = corpus(12, 8)
    quality = assessed(outputs, outputs, wanted)
    assert (quality.exact, quality.references, quality.bleu, quality.differences) == (1.0, 8, None, {})
    assert "pip install 'specdec-core[eval]'" in quality.note
