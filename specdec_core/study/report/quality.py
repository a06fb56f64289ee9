"""Quality of a run's outputs: agreement with the baseline, scores against references, and tested differences.

Imports no torch. sacrebleu and rouge-score, from the extra `eval`, are imported when texts are first scored.

References:
    Leviathan et al. 2023, section 4.1 and appendix A.5 (arXiv 2211.17192).
    Papineni et al. 2002 for BLEU, Popovic 2015 for chrF, Lin 2004 for ROUGE.
    M. Post: A Call for Clarity in Reporting BLEU Scores, 2018 (arXiv 1804.08771), for the signatures.
"""

import importlib.util
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_core.study.report.paired import MIN_PROMPTS, Estimate, estimate

if TYPE_CHECKING:
    from specdec_core.study.run.finished_repeats import Output

METRICS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL")
"""Names of the scores, each from 0 to 100."""
TESTED = ("chrf", "rougeL")
"""The scores that are tested: those that mean something for a single output, ROUGE-L for all of ROUGE."""
_LIBRARIES = {"sacrebleu": "sacrebleu", "rouge_score": "rouge-score"}


@dataclass(frozen=True)
class Scores:
    """How close outputs are to their references, from 0 to 100.

    Attributes:
        corpus: The scores in `METRICS` of all outputs together.
        by_prompt: Those in `TESTED` of each output.
        signatures: Exactly what was computed, in the format of sacrebleu.
    """

    corpus: dict[str, Any]
    by_prompt: dict[str, tuple[float, ...]]
    signatures: dict[str, str]


@dataclass(frozen=True)
class Quality:
    """The quality of a run's outputs.

    Attributes:
        exact: Share of all prompts whose output tokens are those of the baseline.
        first_difference: The first prompt, and its first token, that differ from the baseline, both from 0.
        references: Number of prompts with a reference; scores are those of their outputs.
        bleu: Corpus BLEU, 0 to 100. This and the four below are None without references or libraries.
        chrf: Corpus chrF.
        rouge1: F1 of ROUGE-1, averaged over prompts.
        rouge2: F1 of ROUGE-2.
        rougeL: F1 of ROUGE-L.
        differences: By score, that of single outputs of a sampled run minus that of the sampled baseline: the mean
            over prompts. Empty at temperature 0.
        signatures: By score, exactly what was computed.
        note: What is missing, why, and what to do; None if nothing is.
    """

    exact: float
    first_difference: tuple[int, int] | None
    references: int
    bleu: float | None = None
    chrf: float | None = None
    rouge1: float | None = None
    rouge2: float | None = None
    rougeL: float | None = None  # noqa: N815 - the metric's own name
    differences: dict[str, Estimate] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def assess(
    outputs: "Mapping[int, Sequence[Output]]",
    baseline: "Mapping[int, Sequence[Output]]",
    references: Sequence[Sequence[str]],
    *,
    greedy: bool,
) -> Quality | None:
    """Return the quality of a run that decoded the same prompts one or several times, with the same seeds.

    Scores are those of the first repeat. Agreement with the baseline is checked in all of them.

    Args:
        outputs: The run's outputs in each repeat, by its number; one for each prompt.
        baseline: The baseline's outputs for the same prompts; the run may be the baseline itself.
        references: Any number of reference texts for each prompt. Prompts without a reference are not scored.
        greedy: Whether the temperature is 0. Then nothing is tested, since `exact` says everything.

    Returns:
        The quality; None unless both have a repeat.
    """
    both = [number for number in outputs if number in baseline]
    if not both:
        return None
    pairs = [list(zip(outputs[number], baseline[number], strict=True)) for number in both]
    places = [[ours.first_difference(theirs) for ours, theirs in each] for each in pairs]
    differ = [(prompt, place) for each in places for prompt, place in enumerate(each) if place is not None]
    scored = [index for index, texts in enumerate(references) if texts]
    if any(output.text is None for pair in pairs[0] for output in pair):
        scored = []
    unscored = Quality(1 - len(differ) / sum(map(len, places)), differ[0] if differ else None, len(scored))
    if not scored:
        return unscored
    if missing := missing_library():
        return replace(unscored, note=missing)
    texts = [references[index] for index in scored]
    own, others = (score([side[n].text or "" for n in scored], texts) for side in zip(*pairs[0], strict=True))
    quality = replace(unscored, **own.corpus, signatures=own.signatures)
    if greedy:
        return quality
    units = {name: np.subtract(own.by_prompt[name], others.by_prompt[name]) for name in TESTED}
    few = f"differences are not tested: {len(scored)} prompts have references; at least {MIN_PROMPTS} are needed"
    return replace(
        quality,
        differences={name: estimate(each) for name, each in units.items()},
        note=few if len(scored) < MIN_PROMPTS else None,
    )


def score(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return the scores of texts against their references.

    BLEU and chrF use sacrebleu's defaults. ROUGE is averaged over the prompts, takes the reference with the
    highest F1, and does not stem, as the Porter stemmer is for English only. Its words are runs of letters and
    digits of any alphabet, where the library splits words at non-English letters.

    Args:
        outputs: One text for each prompt, at least one.
        references: One or more texts for each prompt.
    """
    return _score(tuple(outputs), tuple(map(tuple, references)))


# Cached, as the outputs of the baseline are compared with those of every run.
@lru_cache(maxsize=8)
def _score(outputs: tuple[str, ...], references: tuple[tuple[str, ...], ...]) -> Scores:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    streams = list(zip_longest(*references))  # first references of all prompts, second ones, ... padded with None
    bleu, chrf = BLEU(force=True), CHRF()  # `force` silences the warning about texts that look tokenized
    kinds = METRICS[2:]
    scorer = RougeScorer(list(kinds), tokenizer=_Words())
    pairs = list(zip(outputs, references, strict=True))
    best = [scorer.score_multi(texts, output) for output, texts in pairs]
    rouge = {kind: tuple(100 * one[kind].fmeasure for one in best) for kind in kinds}
    corpus = {"bleu": bleu.corpus_score(outputs, streams).score, "chrf": chrf.corpus_score(outputs, streams).score}
    signature = f"f:1|refs:max|case:lc|tok:unicode-words|stem:no|version:{version('rouge-score')}"
    return Scores(
        corpus={**corpus, **{kind: float(np.mean(each)) for kind, each in rouge.items()}},
        by_prompt={
            "chrf": tuple(CHRF().sentence_score(output, texts).score for output, texts in pairs),
            "rougeL": rouge["rougeL"],
        },
        signatures={
            "bleu": str(bleu.get_signature()),
            "chrf": str(chrf.get_signature()),
            **dict.fromkeys(kinds, signature),
        },
    )


class _Words:
    """A tokenizer for ROUGE for every alphabet.

    On ASCII it equals the library's own, which keeps only `[a-z0-9]` and splits "für" in two.
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the words in lower case: runs of letters, marks and digits."""
        # NFC: "u" with a combining diaeresis is the same letter as "ü".
        lower = unicodedata.normalize("NFC", text).lower()
        return "".join(each if unicodedata.category(each)[0] in "LMN" else " " for each in lower).split()


def missing_library() -> str | None:
    """Return what to install so that texts can be scored, or None; imports nothing."""
    missing = [name for module, name in _LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return None
    return (
        f"BLEU, chrF and ROUGE need {' and '.join(missing)}: pip install 'specdec-core[eval]', then run the same "
        "command again; stored outputs are not decoded again"
    )
