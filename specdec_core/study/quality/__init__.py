"""How good the outputs of a run are: scores against references, agreement and difference with plain decoding.

Pure functions of texts and token ids. Importing this imports no torch. sacrebleu and rouge-score, of the extra
`eval`, are imported when texts are first scored.

References:
    Leviathan et al. 2023, section 4.1 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from specdec_core.study.quality.agreement import agreement, check_pairs, first_difference
from specdec_core.study.quality.difference import (
    FEWEST_PROMPTS,
    TESTED,
    Difference,
    differences,
    holm,
    how_tested,
)
from specdec_core.study.quality.scores import METRICS, Scores, count, score

__all__ = [
    "FEWEST_PROMPTS",
    "METRICS",
    "TESTED",
    "Difference",
    "Output",
    "Quality",
    "Scores",
    "agreement",
    "assess",
    "first_difference",
    "holm",
    "missing_library",
    "score",
]

_LIBRARIES = {"sacrebleu": "sacrebleu", "rouge_score": "rouge-score"}


class Output(Protocol):
    """What a run wrote after one prompt, in whatever class it is kept."""

    @property
    def tokens(self) -> Sequence[int]:
        """Token ids, without the prompt."""

    @property
    def text(self) -> str:
        """The text that they make."""


@dataclass(frozen=True)
class Quality:
    """How good the outputs of a run are.

    Attributes:
        exact: Share of all prompts whose tokens are those of plain decoding.
        first_difference: The first prompt, and its first token, that differ from plain decoding, both from 0.
        references: How many prompts have a reference: the scores are those of their outputs.
        bleu: Corpus BLEU, 0 to 100. This and the four below are None without references or libraries.
        chrf: Corpus chrF.
        rouge1: F1 of ROUGE-1, averaged over prompts.
        rouge2: F1 of ROUGE-2.
        rougeL: F1 of ROUGE-L.
        differences: By metric, how a sampled run differs from plain sampling; empty at temperature 0.
        signatures: By metric, and for the test as `differences`, what exactly was computed.
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
    differences: dict[str, Difference] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def assess(
    run_outputs: Sequence[Output],
    plain_outputs: Sequence[Output],
    references: Sequence[Sequence[str]],
    *,
    argmax: bool,
) -> Quality:
    """Return how good a run's outputs are, and whether they are plain decoding's.

    Args:
        run_outputs: What the run wrote, one for each prompt.
        plain_outputs: What plain decoding wrote, of the same prompts in the same order.
        references: One or more texts for each prompt, or none. Prompts with none are not scored.
        argmax: Whether the temperature was 0: then there is nothing to test, since `exact` says all.

    Raises:
        ValueError: There are no outputs, or not as many of one as of the other.
    """
    check_pairs(len(run_outputs), len(references))
    mine, theirs = [each.tokens for each in run_outputs], [each.tokens for each in plain_outputs]
    scored = [index for index, texts in enumerate(references) if texts]
    alone = Quality(agreement(mine, theirs), first_difference(mine, theirs), len(scored))
    if not scored:
        return alone
    if missing := missing_library():
        return replace(alone, note=missing)
    texts = [references[index] for index in scored]
    scores = score([run_outputs[index].text for index in scored], texts)
    quality = replace(
        alone,
        bleu=scores.corpus["bleu"],
        chrf=scores.corpus["chrf"],
        rouge1=scores.corpus["rouge1"],
        rouge2=scores.corpus["rouge2"],
        rougeL=scores.corpus["rougeL"],
        signatures=scores.signatures,
    )
    if argmax:
        return quality
    run, plain = (count([each[n].text for n in scored], texts) for each in (run_outputs, plain_outputs))
    return replace(
        quality,
        differences=differences(run, plain),
        signatures=scores.signatures | {"differences": how_tested(len(scored))},
        note=_too_few(len(scored)),
    )


def missing_library() -> str | None:
    """Return what to install so that texts can be scored, None if all is there; nothing is imported."""
    missing = [name for module, name in _LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return None
    return (
        f"BLEU, chrF and ROUGE need {' and '.join(missing)}: pip install 'specdec-core[eval]', then run the same "
        "command again; outputs are kept and need not be decoded anew"
    )


def _too_few(prompts: int) -> str | None:
    """Return why differences have no p-value, if they have none."""
    if prompts >= FEWEST_PROMPTS:
        return None
    return (
        f"differences have no p-value: with references for {prompts} prompts it could not be below 0.05; "
        f"give at least {FEWEST_PROMPTS}, better hundreds"
    )
