"""Benchmarks of the field: where each is, and how it is read. Imports no torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdec_core.interface.errors import PromptError, unknown_name
from specdec_core.interface.files import input_path
from specdec_core.study.config.prompt_rows import Row, is_readable

_STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{{}}."

BENCHMARKS: dict[str, dict[str, Any]] = {
    "speed-bench": {
        "dataset": "nvidia/SPEED-Bench",
        "config": "qualitative",
        "split": "test",
        "group": "category",
    },
    "spec-bench": {"group": "category"},
    "mt-bench": {"dataset": "HuggingFaceH4/mt_bench_prompts", "split": "train", "group": "category"},
    "gsm8k": {
        "dataset": "openai/gsm8k",
        "config": "main",
        "split": "test",
        "template": "{question}" + _STEPS,
    },
    "math-500": {
        "dataset": "HuggingFaceH4/MATH-500",
        "split": "test",
        "template": "{problem}" + _STEPS,
        "columns": {"id": "unique_id", "source": "subject"},
        "group": "subject",
    },
    "humaneval": {
        "dataset": "openai/openai_humaneval",
        "split": "test",
        "template": "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\n{prompt}\n```",
        "columns": {"id": "task_id"},
    },
    "mbpp": {
        "dataset": "google-research-datasets/mbpp",
        "config": "full",
        "split": "test",
        "column": "text",
        "columns": {"id": "task_id"},
    },
}
"""Keys of `prompts` that each benchmark stands for; `question_id`, `category` and `turns` are read anyway.

References:
    The templates are those of DFlash (arXiv 2602.06036), which are also Qwen's for mathematics.
"""

SAMPLING: dict[str, Any] = {"temperature": 0.0}
"""Sampling settings of a study of benchmarks that states none."""
GENERATION: dict[str, Any] = {"max_new_tokens": 4096}
"""Generation settings of a study of benchmarks, each unless it is stated; texts end where the model ends them."""

_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
"""Stands in SPEED-Bench's public files for texts that a license forbids copying."""
_OF_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of Spec-Bench that are one task in its tables, `mt_bench`; each of the others is a task."""
_MBPP_TEST = set(map(str, range(11, 511)))
"""Ids of the tasks of MBPP's test split."""
_PROMPT_KEYS = ("column", "template")


def check_benchmark(name: str) -> str:
    """Return the name of a benchmark.

    Raises:
        ValueError: It is unknown.
    """
    if name not in BENCHMARKS:
        raise ValueError(unknown_name("benchmark", name, BENCHMARKS))
    return name


def names_prompt(name: str | None) -> bool:
    """Return whether a benchmark names the column of its prompts, or has a template."""
    return any(key in BENCHMARKS.get(name or "", {}) for key in _PROMPT_KEYS)


def spelled_out(name: str, stated: dict[str, Any], path: Path | None, folder: Path) -> dict[str, Any]:
    """Return the settings of prompts that a benchmark stands for.

    Args:
        name: Name of the benchmark.
        stated: Settings that the study states, which win.
        path: A local copy: a file, or a folder that contains it.
        folder: Base for relative paths.

    Raises:
        PromptError: The folder has no such file, or several; or a benchmark that is not on the hub has no path.
    """
    known = {"chat": True, **BENCHMARKS[name]}
    if {*_PROMPT_KEYS, "prompt", "messages"} & {*stated, *stated.get("columns", {})}:
        known = {key: value for key, value in known.items() if key not in _PROMPT_KEYS}
    settings = {**known, **stated}
    if path is None:
        if "dataset" not in settings:
            raise PromptError(
                f"{name} is not on the hub: download question.jsonl from the folder data/spec_bench of "
                "https://github.com/hemingkx/Spec-Bench, and name it with `path`."
            )
        return settings
    words = {settings[key]: key in stated for key in ("config", "split") if key in settings}
    settings = {key: value for key, value in settings.items() if key not in ("dataset", "config", "split")}
    return {**settings, "file": path / _file_in(input_path(path, folder, PromptError), name, words)}


def _file_in(path: Path, name: str, words: Mapping[str, bool]) -> str:
    """Return the path within a folder of its only file, or of the one whose path has some words.

    Args:
        path: The folder; a file has nothing within it.
        name: Name of the benchmark.
        words: Configuration and split, and whether a file must have it, as `main/test-00000-of-00001.parquet` has.
    """
    if not path.is_dir():
        return ""
    files = (one for one in path.rglob("*") if is_readable(one) and one.is_file())
    every = sorted(one.relative_to(path).as_posix() for one in files)
    found = every
    for word, needed in words.items():
        pattern = re.compile(rf"(?<![a-z0-9_]){re.escape(word)}(?![a-z0-9_])")
        matching = [one for one in found if pattern.search(one)]
        found = matching if matching or needed else found
    if len(found) == 1:
        return found[0]
    seen = ", ".join((found or every)[:5]) or "no files"
    raise PromptError(
        f"{path}: expected one file of {name} in this folder; given {seen}. Name one with `path`, or its folder "
        "with `config`."
    )


def benchmark_rows(name: str | None, rows: Iterable[Row]) -> Iterable[Row]:
    """Return the rows of a benchmark: those of MBPP's test split, and Spec-Bench's with the column `task`.

    MBPP's own file holds all splits. A file without any task of the test split is another one that was meant.

    Args:
        name: Name of the benchmark; None for other prompts.
        rows: The rows.
    """
    if name == "spec-bench":
        return map(_with_task, rows)
    if name == "mbpp":
        rows = list(rows)
        return [row for row in rows if row.problem or str(row.values.get("task_id")) in _MBPP_TEST] or rows
    return rows


def _with_task(row: Row) -> Row:
    """Return a row of Spec-Bench that also has the column `task`: one of its six tasks."""
    category = row.values.get("category")
    if category is None:
        return row
    return replace(row, values={"task": "mt_bench" if category in _OF_MT_BENCH else category, **row.values})


def check_placeholders(name: str, texts: Iterable[tuple[str, str]]) -> None:
    """Reject texts that stand for those that SPEED-Bench may not copy.

    Args:
        name: Name of the source in the message.
        texts: Ids and texts of the prompts.

    Raises:
        PromptError: Some are placeholders.
    """
    ids = list(dict.fromkeys(key for key, text in texts if _PLACEHOLDER in text))
    if ids:
        raise PromptError(
            f"{name}: {len(ids)} prompts, first {ids[0]!r}, are placeholders for texts whose license forbids "
            "copying. Let NVIDIA's Model-Optimizer fetch the real ones: `python prepare_data.py --dataset speed "
            "--config qualitative --output_dir data` in its folder examples/specdec_bench; then write {benchmark: "
            "speed-bench, path: data/speed/qualitative}."
        )
