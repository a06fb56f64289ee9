"""Tokens per step of each drafter on the record that ships, for docs/which-drafter.md and the pages of drafters.

The drafters of `examples/replay.yaml` are replayed, so that the figures are exact for the recorded texts, on any
machine. For each drafter, temperature and gamma from 1 to 8: `acceptance_rate`, `block_efficiency`, and
`half_interval`, half of its 95% confidence interval over prompts.

    python benchmarks/which_drafter.py > docs/data/drafters.json
    python benchmarks/which_drafter.py --set 'runs=[{drafter: random, gamma: 2}]'
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _common import report

from specdec_core.offline.replay.comparison import replay

STUDY = Path(__file__).parent.parent / "examples" / "replay.yaml"


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], help="override a value of the study")
    rows = replay("builtin:code", STUDY, settings=parser.parse_args().set).to_dicts()
    report(
        {
            "benchmark": "which_drafter",
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "record": "builtin:code",
            "rows": [_row(row) for row in rows if row["drafter"] is not None],
        }
    )


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line of results says of a run."""
    replayed = row["replayed"]
    return {
        "drafter": row["config"]["run"]["drafter"]["name"],
        "run": re.sub(r"-(gamma=)?\d+$", "", row["name"]),
        "temperature": row["config"]["sampling"]["temperature"],
        "gamma": row["gamma"],
        "acceptance_rate": round(row["alpha"], 4),
        "block_efficiency": round(row["block_efficiency"], 3),
        "half_interval": round((replayed["high"] - replayed["low"]) / 2, 3),
    }


if __name__ == "__main__":
    main()
