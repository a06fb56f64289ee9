"""BLEU, chrF and ROUGE of texts, and the counts they are made from. Importing this imports no torch.

Every metric here is a function of sums over the prompts: of n-gram counts for BLEU and chrF, of each prompt's F1
for ROUGE. The libraries tokenize, count, and choose among several references. Only the closed formula that makes a
score from the sums stands here as well, since a test needs it for ten thousand resamples at once.

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

from specdec_core.study.quality.agreement import check_pairs

METRICS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL")
"""What outputs are scored by, each from 0 to 100."""
_BY_PROMPT = ("chrf", "rougeL")
_BLEU_ORDER, _CHRF_ORDER = 4, 6
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """How near outputs come to their references, on a scale from 0 to 100.

    Attributes:
        corpus: BLEU, chrF and the F1 of ROUGE-1, ROUGE-2 and ROUGE-L of all outputs together, by the names in
            `METRICS`.
        by_prompt: chrF and ROUGE-L of each output. BLEU is not among them: of one sentence it means little.
        signatures: What exactly was computed, in the manner of sacrebleu.
    """

    corpus: dict[str, float]
    by_prompt: dict[str, tuple[float, ...]]
    signatures: dict[str, str]


@dataclass(frozen=True)
class Counted:
    """What a metric counts in N outputs.

    Attributes:
        rows: `[N, S]`, the S sufficient statistics of each output.
        value: From sums of rows `[..., S]` to the scores `[...]`, 0 to 100.
        signature: What exactly was counted.
    """

    rows: _Floats
    value: Callable[[_Floats], _Floats]
    signature: str


def score(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the scores of texts against their references.

    BLEU and chrF have sacrebleu's defaults. ROUGE is averaged over the prompts, takes of several references the
    one with the highest F1, and does not stem: the Porter stemmer is made for English. Its words are runs of
    letters and digits of any alphabet; the library's own end at every letter that is not English.

    Args:
        outputs: One text for each prompt.
        references: One or more texts for each prompt, of any number.

    Raises:
        ValueError: There are no outputs, not as many references, or none for some prompt.
    """
    counted = count(outputs, references)
    return Scores(
        corpus={name: float(each.value(each.rows.sum(axis=0))) for name, each in counted.items()},
        by_prompt={name: tuple(map(float, counted[name].value(counted[name].rows))) for name in _BY_PROMPT},
        signatures={name: each.signature for name, each in counted.items()},
    )


def count(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Counted]:
    """Return what each of `METRICS` counts in the outputs; the arguments and errors are those of `score`."""
    check_pairs(len(outputs), len(references))
    without = [index for index, texts in enumerate(references) if not texts]
    if without:
        raise ValueError(f"prompt {without[0]} (from 0) has no reference: leave it out, or give it one")
    return dict(_count(tuple(outputs), tuple(map(tuple, references))))


# The outputs of plain decoding are compared with those of every run, and counted once.
@lru_cache(maxsize=8)
def _count(outputs: tuple[str, ...], references: tuple[tuple[str, ...], ...]) -> dict[str, Counted]:
    """Return what the libraries count; both are imported here, since they take a second to be."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    counted = {}
    streams = list(zip_longest(*references))  # the first reference of every prompt, the second, with None for none
    # Texts with a blank before the full stop are scored as they are, without a warning that nobody here can heed.
    for name, metric, value in (("bleu", BLEU(force=True), _bleu), ("chrf", CHRF(), _chrf)):
        # What sacrebleu's own significance tests start from. It has no public name.
        rows = metric._extract_corpus_statistics(outputs, streams)
        counted[name] = Counted(np.array(rows, dtype=np.float64), value, str(metric.get_signature()))
    kinds = METRICS[2:]
    scorer = RougeScorer(list(kinds), tokenizer=_Words())
    best = [scorer.score_multi(texts, output) for output, texts in zip(outputs, references, strict=True)]
    signature = f"f:1|refs:max|case:lc|tok:unicode-words|stem:no|version:{version('rouge-score')}"
    for name in kinds:
        rows = [[each[name].fmeasure, 1.0] for each in best]
        counted[name] = Counted(np.array(rows, dtype=np.float64), _mean, signature)
    return counted


class _Words:
    """A tokenizer for ROUGE that knows the letters of every alphabet.

    On ASCII it gives what the library's own does, which keeps `[a-z0-9]` and makes two words of "für".
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the words in lower case: runs of letters, marks and digits."""
        # NFC, since "u" with a combining diaeresis is the same letter as "ü".
        lower = unicodedata.normalize("NFC", text).lower()
        return "".join(each if unicodedata.category(each)[0] in "LMN" else " " for each in lower).split()


def _bleu(sums: _Floats) -> _Floats:
    """Return BLEU by sacrebleu's defaults: orders 1 to 4, exponential smoothing of orders without a match.

    Args:
        sums: `[..., 10]`, length of outputs and references, matches by order, n-grams by order.
    """
    length, wanted = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + _BLEU_ORDER], sums[..., 2 + _BLEU_ORDER :]
    # The k-th order without a match counts as 2^-k of one (mteval-v13a).
    smoothed = np.where(matched > 0, matched, 0.5 ** np.cumsum(matched == 0, axis=-1))
    precision = np.log(smoothed / np.maximum(total, 1)).mean(axis=-1)
    brevity = np.minimum(0.0, 1 - wanted / np.maximum(length, 1))
    known = (total > 0).all(axis=-1) & (matched > 0).any(axis=-1)
    return np.where(known, 100 * np.exp(precision + brevity), 0.0)


def _chrf(sums: _Floats) -> _Floats:
    """Return chrF2 by sacrebleu's defaults: characters of orders 1 to 6, of those that both sides have.

    Args:
        sums: `[..., 18]`, n-grams of outputs, of references, and matches, for each order.
    """
    orders = sums.reshape(*sums.shape[:-1], _CHRF_ORDER, 3)
    mine, wanted, matched = orders[..., 0], orders[..., 1], orders[..., 2]
    there = (mine > 0) & (wanted > 0)
    known = np.maximum(there.sum(axis=-1), 1)
    precision = np.where(there, matched / np.maximum(mine, 1), 0.0).sum(axis=-1) / known
    recall = np.where(there, matched / np.maximum(wanted, 1), 0.0).sum(axis=-1) / known
    below = 4 * precision + recall
    scores: _Floats = 100 * 5 * precision * recall / np.where(below > 0, below, 1.0)
    return scores


def _mean(sums: _Floats) -> _Floats:
    """Return the mean of values up to 1 as a score: `[..., 2]`, their sum and their number."""
    scores: _Floats = 100 * sums[..., 0] / sums[..., 1]
    return scores
