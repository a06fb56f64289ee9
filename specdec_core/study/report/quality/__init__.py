"""Quality of a run's outputs: scores against references, agreement with the baseline, and tested differences.

Pure functions of texts and token ids. Importing this imports no torch. sacrebleu and rouge-score, from the extra
`eval`, are imported when texts are first scored.

References:
    Leviathan et al. 2023, section 4.1 and appendix A.5 (arXiv 2211.17192).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specdec_core.study.report.quality.difference import (
    TESTED,
    Difference,
    differences,
    holm,
    how_tested,
)
from specdec_core.study.report.quality.scores import (
    METRICS,
    Scores,
    agreement,
    check_pairs,
    count,
    first_difference,
    score,
)
from specdec_core.study.report.resampling import MIN_PROMPTS

if TYPE_CHECKING:
    from specdec_core.decoding.request_metrics import RequestMetrics

__all__ = [
    "METRICS",
    "MIN_PROMPTS",
    "TESTED",
    "Difference",
    "Output",
    "Quality",
    "Scores",
    "agreement",
    "assess",
    "assess_repeats",
    "first_difference",
    "holm",
    "missing_library",
    "score",
]

_LIBRARIES = {"sacrebleu": "sacrebleu", "rouge_score": "rouge-score"}


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a run for one prompt.

    Attributes:
        tokens: Ids of the new tokens; empty where an engine does not tell them.
        text: The decoded tokens; None without a tokenizer.
        metrics: Counts of the request; None with beams, and for recorded texts.
        count: Number of new tokens, where an engine does not tell their ids; else None.
        thinking: The index of the first token of its thinking part, and that behind the last; None without one.
        finish_reason: Why it ended, in our words or the engine's; None where that is not known. `context` without
            any token: its conversation had outgrown the target's context.
    """

    tokens: tuple[int, ...]
    text: str | None
    metrics: RequestMetrics | None = None
    count: int | None = None
    thinking: tuple[int, int] | None = None
    finish_reason: str | None = None

    @property
    def outgrown(self) -> bool:
        """Whether nothing was decoded, as the conversation had outgrown the target's context."""
        return self.finish_reason == "context" and not self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return len(self.tokens) if self.count is None else self.count

    def beside(self, other: Output) -> tuple[Sequence[object], Sequence[object]]:
        """Return what is compared of two outputs: tokens, or characters where an engine tells no tokens."""
        if self.count is None and other.count is None:
            return self.tokens, other.tokens
        return self.text or "", other.text or ""

    def same_as(self, other: Output) -> bool:
        """Return whether two outputs have equal tokens, or texts where an engine tells no tokens."""
        ours, theirs = self.beside(other)
        return ours == theirs


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
        differences: By metric, the difference between a sampled run and the sampled baseline; empty at
            temperature 0.
        signatures: By metric, and under `differences` for the test, exactly what was computed.
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
    outputs: Sequence[Output],
    baseline: Sequence[Output],
    references: Sequence[Sequence[str]],
    *,
    greedy: bool,
) -> Quality:
    """Return the quality of a run's outputs, and whether they are those of the baseline.

    Args:
        outputs: The run's outputs, one for each prompt.
        baseline: The baseline's outputs for the same prompts, in the same order.
        references: Any number of reference texts for each prompt. Prompts without a reference are not scored.
        greedy: Whether the temperature is 0. Then nothing is tested, since `exact` says everything.

    Raises:
        ValueError: If the outputs are empty, or differ in number.
    """
    check_pairs(len(outputs), len(references))
    tokens, others = _alike(outputs, baseline)
    scored = [index for index, texts in enumerate(references) if texts]
    unscored = Quality(agreement(tokens, others), first_difference(tokens, others), len(scored))
    if not scored:
        return unscored
    if missing := missing_library():
        return replace(unscored, note=missing)
    texts = [references[index] for index in scored]
    run_texts, baseline_texts = ([each[n].text or "" for n in scored] for each in (outputs, baseline))
    scores = score(run_texts, texts)
    quality = replace(
        unscored,
        bleu=scores.corpus["bleu"],
        chrf=scores.corpus["chrf"],
        rouge1=scores.corpus["rouge1"],
        rouge2=scores.corpus["rouge2"],
        rougeL=scores.corpus["rougeL"],
        signatures=scores.signatures,
    )
    if greedy:
        return quality
    return replace(
        quality,
        differences=differences(count(run_texts, texts), count(baseline_texts, texts)),
        signatures=scores.signatures | {"differences": how_tested(len(scored))},
        note=_too_few(len(scored)),
    )


def _alike(
    outputs: Sequence[Output], baseline: Sequence[Output]
) -> tuple[list[Sequence[object]], list[Sequence[object]]]:
    """Return what is compared of each output."""
    check_pairs(len(outputs), len(baseline))
    pairs = [one.beside(other) for one, other in zip(outputs, baseline, strict=True)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def assess_repeats(
    outputs: Mapping[int, Sequence[Output]],
    baseline: Mapping[int, Sequence[Output]],
    references: Sequence[Sequence[str]],
    *,
    greedy: bool,
) -> Quality | None:
    """Return the quality of a run that decoded the same prompts several times, with the same seeds.

    Scores are those of the first repeat. Agreement with the baseline is checked in all of them.

    Args:
        outputs: The run's outputs in each repeat, by its number.
        baseline: The baseline's outputs; the run may be the baseline itself.
        references: As for `assess`; they are not used if some output has no text.
        greedy: As for `assess`.

    Returns:
        The quality; None unless both have a repeat.
    """
    both = [number for number in outputs if number in baseline]
    if not both:
        return None
    first, others = outputs[both[0]], baseline[both[0]]
    has_text = all(output.text is not None for output in (*first, *others))
    quality = assess(first, others, references if has_text else [()] * len(first), greedy=greedy)
    tokens, expected = _alike(*([one for n in both for one in run[n]] for run in (outputs, baseline)))
    found = first_difference(tokens, expected)
    return replace(
        quality,
        exact=agreement(tokens, expected),
        first_difference=None if found is None else (found[0] % len(first), found[1]),
    )


def missing_library() -> str | None:
    """Return what to install so that texts can be scored, or None; imports nothing."""
    missing = [name for module, name in _LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return None
    return (
        f"BLEU, chrF and ROUGE need {' and '.join(missing)}: pip install 'specdec-core[eval]', then run the same "
        "command again; stored outputs are not decoded again"
    )


def _too_few(prompts: int) -> str | None:
    """Return why differences have no p-value, if they have none."""
    if prompts >= MIN_PROMPTS:
        return None
    return (
        f"differences have no p-value: with references for {prompts} prompts it could not be below 0.05; "
        f"provide at least {MIN_PROMPTS}, better hundreds"
    )
