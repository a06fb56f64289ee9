# ruff: noqa: T201  (this prints a report)
"""Try many random cases of every attack, and print a table of what held and what gave way.

    python -m tests.robustness                          200 cases of the cheapest attacks, fewer of the others
    python -m tests.robustness --cases 5000 --seed 7    the long one
    python -m tests.robustness --only studies,models    some attacks
    python -m tests.robustness --only models --case 17  one case again, with its traceback

Exit status: 0 if everything held, 1 if something gave way.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.robustness import (
    controllers,
    files,
    folders,
    kills,
    logs,
    pages,
    plugins,
    proposals,
    records,
    rules,
    terminals,
)
from tests.robustness.attack import Attack, Result, attempt

ATTACKS = (
    Attack("answering", "plugins that answer nonsense", plugins.answering),
    Attack("malformed", "proposals with one part wrong", proposals.malformed),
    Attack("misused", "requests used in the wrong way", proposals.misused),
    Attack("rules", "acceptance rules that answer nonsense or write to what they read", rules.rules),
    Attack("controllers", "controllers that answer nonsense", controllers.controllers),
    Attack("studies", "studies with changed values and bytes", files.studies),
    Attack("prompts", "prompt files with changed bytes", files.prompts),
    Attack("ngrams", "ARPA files with changed bytes", files.ngrams),
    Attack("logs", "logs of other programs with changed values and bytes", logs.logs),
    Attack("pages", "markup in what the report and notebooks show", pages.pages),
    Attack("records", "headers, metadata and arrays of records, with a sound checksum", records.records, cost=4),
    Attack("models", "damaged model folders", folders.models, cost=4),
    Attack("terminals", "control characters and formulas in names", terminals.terminals, cost=4),
    Attack("journals", "results with damaged lines", folders.journals, cost=10),
    Attack("kills", "signals at a random moment, then resumed", kills.kills, cost=100),
)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=200, help="cases of the cheapest attacks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="NAME,...", help=", ".join(one.name for one in ATTACKS))
    parser.add_argument("--case", type=int, help="one case again, with its traceback")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case there")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {one.name for one in ATTACKS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    attacks = [one for one in ATTACKS if not names or one.name in names]
    if options.case is not None:
        found = [attempt(attack, options.seed, options.case, debug=True) for attack in attacks]
        print(*(f"{one.did}: {one.broken or 'held'}" for one in found), sep="\n")
        return int(any(one.broken for one in found))
    results = {attack: _tried(attack, options.seed, max(1, options.cases // attack.cost)) for attack in attacks}
    if options.json:
        plain = {attack.name: [asdict(one) for one in found] for attack, found in results.items()}
        options.json.write_text(json.dumps(plain, indent=1))
    return _report(results)


def _tried(attack: Attack, seed: int, cases: int) -> list[Result]:
    found = []
    for number in range(cases):
        found.append(attempt(attack, seed, number))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{attack.name}: {number + 1} of {cases}, {_broken(found)} gave way ")
    return found


def _broken(results: Sequence[Result]) -> int:
    return sum(bool(one.broken) for one in results)


def _report(results: dict[Attack, list[Result]]) -> int:
    print("| attack | what it tries | cases | gave way |")
    print("|---|---|---:|---:|")
    for attack, found in results.items():
        print(f"| {attack.name} | {attack.about} | {len(found)} | {_broken(found)} |")
    for attack, found in results.items():
        kinds = Counter(one.kind for one in found if one.broken)
        for kind, times in kinds.most_common():
            first = next(one for one in found if one.broken and one.kind == kind)
            print(f"\n{attack.name} {first.number}, {times} times: {first.did}\n    {first.broken[:300]}")
    return int(any(map(_broken, results.values())))


if __name__ == "__main__":
    sys.exit(main())
