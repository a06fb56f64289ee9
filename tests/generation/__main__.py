"""Ask each family of models for what transformers' generation tests ask, of plain `generate` and of ours.

    python -m tests.generation                    all families
    python -m tests.generation llama t5           some
    python -m tests.generation --json FILE        write the results, as in docs/data/generation.json
    python -m tests.generation --check            compare them with that file, which docs/transformers.md shows

What ours does not do is listed in expected.yaml, with the reason. Exit status: 1 if a result is another one than
expected there (a failure, or a success), or than in the file.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import transformers
import yaml

from specdec_core.interface import SpecdecError
from tests.generation.families import FAMILIES
from tests.generation.shapes import SHAPES, Case, PlainError, applies

Expected: TypeAlias = Mapping[str, Mapping[str, str]]
VERDICTS = ("passed", "expected", "skipped", "failed")
ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs/data/generation.json"
EXPECTED = Path(__file__).with_name("expected.yaml")


def outcome(case: Case, shape: str) -> str:
    """Return "passed", or "skipped: ...", "refused: ...", "differs: ..." or "failed: ..."."""
    try:
        SHAPES[shape](case)
    except PlainError as error:
        return f"skipped: {error}"
    except SpecdecError as error:
        return f"refused: {error}"
    except AssertionError as error:
        return f"differs: {error}"
    except Exception as error:  # of transformers, or ours
        return f"failed: {type(error).__name__}: {error}"
    return "passed"


def reason(expected: Expected, shape: str, family: str) -> str | None:
    """Return what the table of expectations has for a shape; None if it must pass."""
    of_shape = expected.get(shape, {})
    return of_shape.get(family) or of_shape.get("*")


def judged(result: str, wanted: str | None) -> str:
    """Return one of `VERDICTS`."""
    if result.startswith("skipped: "):
        return "skipped"
    if wanted is None:
        return "passed" if result == "passed" else "failed"
    return "expected" if result != "passed" and re.search(wanted, result) else "failed"


def main() -> None:
    """Run; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="all of them by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--check", action="store_true", help="compare the results with docs/data/generation.json")
    options = parser.parse_args()
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"unknown families {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    expected = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))
    begun, rows, problems = time.perf_counter(), [], []
    for family in options.families or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            row, found = run(Case(family, folder), expected)
        rows.append(row)
        problems += found
        print(f"{family:18}", ", ".join(f"{row[one]:2} {one}" for one in VERDICTS), flush=True)  # noqa: T201
    print(", ".join(f"{sum(row[one] for row in rows)} {one}" for one in VERDICTS))  # noqa: T201
    print(f"{len(rows)} families in {time.perf_counter() - begun:.0f} s")  # noqa: T201
    data = {"transformers": transformers.__version__, "shapes": len(SHAPES), "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.check and data != json.loads(DATA.read_text(encoding="utf-8")):
        problems.append(f"{DATA.name} has other results; renew it with --json, and the page with docs/generate.py")
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201
    sys.exit(bool(problems))


def run(case: Case, expected: Expected) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a family, and what was not as expected."""
    counts: Counter[str] = Counter()
    problems = []
    for shape in SHAPES:
        if not applies(shape, case):
            continue
        result = outcome(case, shape)
        verdict = judged(result, wanted := reason(expected, shape, case.family))
        counts[verdict] += 1
        if verdict == "failed":
            problems.append(f"{case.family}, {shape}: {result[:300]}; expected: {wanted or 'passed'}")
    drafted = case.drafted.metrics
    if counts["passed"] and not 0 < drafted.accepted < drafted.drafted:
        problems.append(f"{case.family}: {drafted.accepted} of {drafted.drafted} drafted tokens were accepted")
    return {"family": case.family, **{one: counts[one] for one in VERDICTS}}, problems


if __name__ == "__main__":
    main()
