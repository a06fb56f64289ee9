"""The cost of a step of each drafter to the host of a GPU: waits, copies, launches and allocations.

Counts need no GPU: they come from the simulated one of the tests, whose counts are the same on each machine. The
models are tiny, with two layers; what counts is what happens outside of them.

    python benchmarks/launches.py --output specdec_core/costs/gpu/launches.json
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import simulated_gpu


def main() -> None:
    """Count, and write or print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file; standard output by default")
    parser.add_argument(
        "--only", default="", help="count cases with this in their names, and print where the host waits"
    )
    arguments = parser.parse_args()
    simulated_gpu.install()
    from tests.device.counting import cases

    warnings.simplefilter("ignore")
    found: dict[str, dict[str, dict[str, int]]] = {}
    for setting, case in cases():
        if arguments.only not in case.name:
            continue
        cost, counts = case.cost()
        found.setdefault(setting, {})[case.name] = asdict(cost)
        if arguments.only:
            print(f"{case.name}, {setting}:", counts.lines("fetch", "upload", "upload_pageable"), sep="\n")
    text = json.dumps(found, indent=1) + "\n"
    if arguments.output is None:
        print(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
