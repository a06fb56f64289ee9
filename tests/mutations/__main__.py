"""Apply one mutation at a time to a copy of the repository, and see which test fails.

    python -m tests.mutations                  every mutation
    python -m tests.mutations NAME ...         some, by name (or part of a name)
    python -m tests.mutations --likely-tests   only the tests that each mutation names
    python -m tests.mutations --all-tests      only the default suite

Without an option, the tests that a mutation names run first, and the default suite if they all pass. The test that
fails is run again without the mutation, where it must pass.

Exit status: 0 if every mutation was caught, 1 if any survived, 2 if one is stale or could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", "site", "dist", ".work")


@dataclass(frozen=True)
class Result:
    """What became of a mutation.

    Attributes:
        name: Of the mutation.
        caught_by: The first test that failed; None if the mutation survived.
        seconds: Wall time until then.
    """

    name: str
    caught_by: str | None
    seconds: float


class CannotRunError(Exception):
    """A mutation is stale, or pytest could not run: neither caught nor survived."""


def occurrences(mutation: Mutation, root: Path = ROOT) -> int:
    """Return how often the text that a mutation replaces occurs in its file."""
    path = root / mutation.file
    return path.read_text(encoding="utf-8").count(mutation.old) if path.exists() else 0


def first_failure(copy: Path, arguments: Sequence[str], timeout: float) -> str | None:
    """Run pytest in a copy of the repository until a test fails; return its id, or None if all pass."""
    path = os.pathsep.join(str(copy / folder) for folder in (".", "drafters", "plugins"))
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"a timeout of {timeout:.0f} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise CannotRunError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1]


def try_mutation(mutation: Mutation, copy: Path, runs: Sequence[str], workers: int, timeout: float) -> Result:
    """Apply a mutation to a copy, run tests until one fails, and restore the copy.

    Args:
        mutation: What to apply.
        copy: A copy of the repository.
        runs: Which tests, in turn: `likely` (those the mutation names), `all` (the default suite).
        workers: Processes for the default suite.
        timeout: Seconds for each run of pytest.
    """
    found = occurrences(mutation, copy)
    if found != 1:
        raise CannotRunError(f"its text occurs {found} times in {mutation.file}, not once: update the mutation")
    path = copy / mutation.file
    suite = ["-n", str(workers)]
    original = path.read_text(encoding="utf-8")
    begun = perf_counter()
    try:
        path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
        caught_by = None
        for run in runs:
            caught_by = caught_by or first_failure(copy, mutation.tests if run == "likely" else suite, timeout)
    finally:
        path.write_text(original, encoding="utf-8")
    seconds = perf_counter() - begun
    if caught_by is not None and "::" in caught_by and first_failure(copy, [caught_by], timeout) is not None:
        raise CannotRunError(f"{caught_by} fails without the mutation, too")
    return Result(mutation.name, caught_by, seconds)


def selected(names: Sequence[str]) -> list[Mutation]:
    """Return the mutations whose name holds one of these texts; all of them without any."""
    unknown = [name for name in names if not any(name in mutation.name for mutation in MUTATIONS)]
    if unknown:
        raise SystemExit(
            f"no mutation is called {unknown[0]!r}; there are:\n" + "\n".join(m.name for m in MUTATIONS)
        )
    return [one for one in MUTATIONS if not names or any(name in one.name for name in names)]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutation, or a part of its name")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all-tests", action="store_true", help="run the default suite only")
    which.add_argument("--likely-tests", action="store_true", help="run the named tests only")
    parser.add_argument("--workers", type=int, default=2, help="processes for the default suite")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each run of pytest")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()

    runs = ["all"] if options.all_tests else ["likely"] if options.likely_tests else ["likely", "all"]
    results: list[Result] = []
    errors = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        print("| mutation | first test that fails | seconds |\n|---|---|---:|", flush=True)  # noqa: T201
        for mutation in selected(options.names):
            try:
                result = try_mutation(mutation, copy, runs, options.workers, options.timeout)
            except CannotRunError as error:
                errors += 1
                print(f"{mutation.name}: {error}", file=sys.stderr, flush=True)  # noqa: T201
                continue
            results.append(result)
            caught = "**nothing**" if result.caught_by is None else f"`{result.caught_by}`"
            print(f"| {result.name} | {caught} | {result.seconds:.0f} |", flush=True)  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n", encoding="utf-8")
    survived = sum(one.caught_by is None for one in results)
    print(f"\n{len(results)} run, {survived} survived, {errors} could not be run", file=sys.stderr)  # noqa: T201
    return 2 if errors else int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
