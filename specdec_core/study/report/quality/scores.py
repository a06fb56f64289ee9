"""BLEU, chrF and ROUGE of texts, their sufficient statistics, and agreement of tokens. Imports no torch.

Every metric is a function of sums over the prompts: of n-gram counts for BLEU and chrF, of each prompt's F1 for
ROUGE. The libraries tokenize, count, and choose among several references. Only the closed formula from sums to
scores is repeated here, vectorized, as tests of differences need it for ten thousand resamples at once.

References:
    Papineni et al. 2002 for BLEU, Popovic 2015 for chrF, Lin 2004 for ROUGE.
    M. Post: A Call for Clarity in Reporting BLEU Scores, 2018 (arXiv 1804.08771), for the signatures.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

METRICS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL")
"""Names of the scores, each from 0 to 100."""
_BY_PROMPT = ("chrf", "rougeL")
_BLEU_ORDER, _CHRF_ORDER = 4, 6
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """How close outputs are to their references, from 0 to 100.

    Attributes:
        corpus: BLEU, chrF and the F1 of ROUGE-1, ROUGE-2 and ROUGE-L of all outputs together, by the names in
            `METRICS`.
        by_prompt: chrF and ROUGE-L of each output, but not BLEU, which means little for a single sentence.
        signatures: Exactly what was computed, in the format of sacrebleu.
    """

    corpus: dict[str, float]
    by_prompt: dict[str, tuple[float, ...]]
    signatures: dict[str, str]


@dataclass(frozen=True)
class Statistics:
    """The sufficient statistics of a metric for N outputs.

    Attributes:
        rows: `[N, S]`, float64, the S statistics of each output.
        value: Maps sums of rows `[..., S]` to scores `[...]`, 0 to 100.
        signature: Exactly what was counted.
    """

    rows: _Floats
    value: Callable[[_Floats], _Floats]
    signature: str


def score(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the scores of texts against their references.

    BLEU and chrF use sacrebleu's defaults. ROUGE is averaged over the prompts, takes the reference with the
    highest F1, and does not stem, as the Porter stemmer is for English only. Its words are runs of letters and
    digits of any alphabet, where the library splits words at non-English letters.

    Args:
        outputs: One text for each prompt.
        references: One or more texts for each prompt.

    Raises:
        ValueError: If outputs are empty, not as many references, or a prompt without a reference.
    """
    counted = count(outputs, references)
    return Scores(
        corpus={name: float(each.value(each.rows.sum(axis=0))) for name, each in counted.items()},
        by_prompt={name: tuple(map(float, counted[name].value(counted[name].rows))) for name in _BY_PROMPT},
        signatures={name: each.signature for name, each in counted.items()},
    )


def count(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Statistics]:
    """Return the statistics of each of `METRICS`; arguments and errors are those of `score`."""
    check_pairs(len(outputs), len(references))
    without = [index for index, texts in enumerate(references) if not texts]
    if without:
        raise ValueError(f"prompt {without[0]} (from 0) has no reference: leave it out, or add one")
    return dict(_count(tuple(outputs), tuple(map(tuple, references))))


# Cached, as the outputs of the baseline are compared with those of every run.
@lru_cache(maxsize=8)
def _count(outputs: tuple[str, ...], references: tuple[tuple[str, ...], ...]) -> dict[str, Statistics]:
    """Count with the libraries, which are imported here because that takes a second."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    counted = {}
    streams = list(zip_longest(*references))  # first references of all prompts, second ones, ... padded with None
    # `force` silences the warning about texts that look tokenized.
    for name, metric, value in (("bleu", BLEU(force=True), _bleu), ("chrf", CHRF(), _chrf)):
        # sacrebleu's own significance tests use it; nothing public does the same.
        rows = metric._extract_corpus_statistics(outputs, streams)
        counted[name] = Statistics(np.array(rows, dtype=np.float64), value, str(metric.get_signature()))
    kinds = METRICS[2:]
    scorer = RougeScorer(list(kinds), tokenizer=_Words())
    best = [scorer.score_multi(texts, output) for output, texts in zip(outputs, references, strict=True)]
    signature = f"f:1|refs:max|case:lc|tok:unicode-words|stem:no|version:{version('rouge-score')}"
    for name in kinds:
        rows = [[each[name].fmeasure, 1.0] for each in best]
        counted[name] = Statistics(np.array(rows, dtype=np.float64), _mean, signature)
    return counted


class _Words:
    """A tokenizer for ROUGE for every alphabet.

    On ASCII it equals the library's own, which keeps only `[a-z0-9]` and splits "für" in two.
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the words in lower case: runs of letters, marks and digits."""
        # NFC: "u" with a combining diaeresis is the same letter as "ü".
        lower = unicodedata.normalize("NFC", text).lower()
        return "".join(each if unicodedata.category(each)[0] in "LMN" else " " for each in lower).split()


def _bleu(sums: _Floats) -> _Floats:
    """Return BLEU by sacrebleu's defaults: orders 1 to 4, exponential smoothing of orders without a match.

    Args:
        sums: `[..., 10]`, lengths of outputs and references, matches by order, n-grams by order.
    """
    length, reference_length = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + _BLEU_ORDER], sums[..., 2 + _BLEU_ORDER :]
    # The k-th order without a match counts as 2^-k of one (mteval-v13a).
    smoothed = np.where(matched > 0, matched, 0.5 ** np.cumsum(matched == 0, axis=-1))
    precision = np.log(smoothed / np.maximum(total, 1)).mean(axis=-1)
    brevity = np.minimum(0.0, 1 - reference_length / np.maximum(length, 1))
    known = (total > 0).all(axis=-1) & (matched > 0).any(axis=-1)
    return np.where(known, 100 * np.exp(precision + brevity), 0.0)


def _chrf(sums: _Floats) -> _Floats:
    """Return chrF2 by sacrebleu's defaults: character n-grams of the orders 1 to 6 that both sides have.

    Args:
        sums: `[..., 18]`, n-grams of outputs, n-grams of references, and matches, for each order.
    """
    orders = sums.reshape(*sums.shape[:-1], _CHRF_ORDER, 3)
    ours, theirs, matched = orders[..., 0], orders[..., 1], orders[..., 2]
    there = (ours > 0) & (theirs > 0)
    known = np.maximum(there.sum(axis=-1), 1)
    precision = np.where(there, matched / np.maximum(ours, 1), 0.0).sum(axis=-1) / known
    recall = np.where(there, matched / np.maximum(theirs, 1), 0.0).sum(axis=-1) / known
    below = 4 * precision + recall
    scores: _Floats = 100 * 5 * precision * recall / np.where(below > 0, below, 1.0)
    return scores


def _mean(sums: _Floats) -> _Floats:
    """Return 100 times the mean of values in [0, 1], from their sum and number `[..., 2]`."""
    scores: _Floats = 100 * sums[..., 0] / sums[..., 1]
    return scores


def agreement(outputs: Sequence[Sequence[object]], baseline: Sequence[Sequence[object]]) -> float:
    """Return the share of prompts whose output tokens are all those of the baseline.

    It must be 1.0 at temperature 0 with lenience 1 (Leviathan et al. 2023, appendix A.1, arXiv 2211.17192).
    Sampled runs need not agree: they have the same distribution, not the same tokens.

    Args:
        outputs: The run's token ids for each prompt, without the prompt.
        baseline: The baseline's token ids for the same prompts, in the same order.

    Raises:
        ValueError: If the outputs are empty, or differ in number.
    """
    check_pairs(len(outputs), len(baseline))
    return sum(list(ours) == list(theirs) for ours, theirs in zip(outputs, baseline, strict=True)) / len(baseline)


def first_difference(
    outputs: Sequence[Sequence[object]], baseline: Sequence[Sequence[object]]
) -> tuple[int, int] | None:
    """Return the first prompt that differs from the baseline and its first such token, both from 0, or None.

    If one output is a prefix of the other, the token is the first that the shorter one lacks.

    Args:
        outputs: As for `agreement`.
        baseline: As for `agreement`.

    Raises:
        ValueError: As for `agreement`.
    """
    check_pairs(len(outputs), len(baseline))
    for index, (ours, theirs) in enumerate(zip(outputs, baseline, strict=True)):
        if list(ours) != list(theirs):
            pairs = enumerate(zip(ours, theirs, strict=False))
            return index, next((position for position, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    return None


def check_pairs(outputs: int, others: int) -> None:
    """Check that two lists have the same length, at least 1.

    Raises:
        ValueError: If they do not.
    """
    if outputs != others or not outputs:
        raise ValueError(
            f"{outputs} outputs to be paired with {others}: provide one of each for at least one prompt"
        )
