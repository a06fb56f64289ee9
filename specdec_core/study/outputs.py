"""What runs wrote: how good it is beside plain decoding's, and all of it as lines of JSON. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specdec_core.study.quality import Quality, agreement, assess, first_difference
from specdec_core.study.study import PLAIN

if TYPE_CHECKING:
    from specdec_core.study.journal import Output, Repeat
    from specdec_core.study.runner import StudyResult
    from specdec_core.study.study import Task


@dataclass(frozen=True)
class _Written:
    """An output that surely has a text."""

    tokens: tuple[int, ...]
    text: str


def quality_of(task: Task, repeats: Mapping[int, Repeat], plain: Mapping[int, Repeat]) -> Quality | None:
    """Return how good a run's outputs are; None where nothing was decoded.

    Scores are those of the first repeat: the others have the same seeds. Agreement with plain decoding is that of
    all of them.

    Args:
        task: What was decoded.
        repeats: The run's finished repeats, by number.
        plain: Those of plain decoding, which may be the run itself.
    """
    both = [number for number in repeats if number in plain]
    if not both:
        return None
    mine, others = repeats[both[0]].outputs, plain[both[0]].outputs
    texts = all(output.text is not None for output in (*mine, *others))
    references = [prompt.references if texts else () for prompt in task.prompts]
    # What is plain decoding itself, or must be the same, has no difference to test.
    same = repeats == plain or task.sampling.argmax
    quality = assess(_written(mine), _written(others), references, argmax=same)
    tokens, expected = ([one.tokens for n in both for one in run[n].outputs] for run in (repeats, plain))
    return replace(
        quality, exact=agreement(tokens, expected), first_difference=_first(tokens, expected, len(mine))
    )


def outputs_of(result: StudyResult) -> Iterator[dict[str, Any]]:
    """Yield what every run wrote after every prompt in its first repeat: one line of `outputs.jsonl` each."""
    for task in result.study.tasks:
        plain = _first_outputs(result.of_run(task, PLAIN))
        for run in task.runs:
            outputs = _first_outputs(result.of_run(task, run.name))
            for place, (prompt, output) in enumerate(zip(task.prompts, outputs, strict=False)):
                yield {
                    "task": task.name,
                    "run": run.name,
                    "prompt": prompt.id,
                    "source": prompt.source,
                    "text": output.text,
                    "references": list(prompt.references),
                    "as_plain": place < len(plain) and output.tokens == plain[place].tokens,
                    "tokens": list(output.tokens),
                }


def _first_outputs(repeats: Mapping[int, Repeat]) -> tuple[Output, ...]:
    return next(iter(repeats.values())).outputs if repeats else ()


def _written(outputs: tuple[Output, ...]) -> list[_Written]:
    return [_Written(output.tokens, output.text or "") for output in outputs]


def _first(tokens: list[tuple[int, ...]], expected: list[tuple[int, ...]], prompts: int) -> tuple[int, int] | None:
    """Return the first prompt and its first token that differ in any repeat, both from 0."""
    found = first_difference(tokens, expected)
    return None if found is None else (found[0] % prompts, found[1])
