"""A replay on two workers of a Ray cluster on this machine, beside one worker and beside this process.

Each drafter is asked along the texts of a record, in jobs of some texts each; the expectations that follow are
computed by one process. The workers are warmed up first: each takes seconds to import torch. Times are wall times
of whole replays, in turn, and all results must be equal.

    python benchmarks/cluster.py
    python benchmarks/cluster.py --record builtin:code --drafters prompt-copy --gammas 1 2 3 4
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a worker has a core

from _common import ratios, report, spread

from specdec_core.offline.replay.comparison import replay

TRANSFORMER = {"name": "transformer", "model": "builtin:drafter"}


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    drafters = [TRANSFORMER if name == "transformer" else name for name in options.drafters]
    seconds: dict[str, list[float]] = {}
    found: dict[str, object] = {}
    replay(options.record, "random", gammas=[1], progress=False)  # imports torch
    for turn in range(options.repeats):
        for workers in (0, 1, 2):
            name = f"{workers} workers" if workers else "this process"
            took, results = timed(options, drafters, workers)
            seconds.setdefault(name, []).append(took)
            if found.setdefault("results", results) != results:
                raise SystemExit(f"turn {turn}: {name} gave other results than before")
    report(
        {
            "benchmark": "cluster",
            "options": vars(options),
            "cores": os.cpu_count(),
            "seconds": {name: spread(each, 2) for name, each in seconds.items()},
            "one_worker_over_two": ratios(seconds["1 workers"], seconds["2 workers"]),
            "this_process_over_two_workers": ratios(seconds["this process"], seconds["2 workers"]),
            "equal_results": True,
        }
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", default="builtin:code")
    parser.add_argument("--drafters", nargs="+", default=["prompt-copy", "transformer"])
    parser.add_argument("--gammas", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    return parser.parse_args()


def timed(options: argparse.Namespace, drafters: list[object], workers: int) -> tuple[float, object]:
    """Return the seconds of a replay on a number of workers, 0 for this process, and its results."""
    if workers:
        import ray

        ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
        ray.get([warm_up.remote() for warm_up in [ray.remote(import_torch)] * workers])
    try:
        begun = perf_counter()
        result = replay(
            options.record,
            drafters,
            gammas=options.gammas,
            ray="auto" if workers else None,
            progress=False,
        )
        return perf_counter() - begun, result.to_dicts()
    finally:
        if workers:
            ray.shutdown()


def import_torch() -> None:
    """Import what a job of a replay needs, for as long as another worker takes to begin."""
    from time import sleep

    import specdec_core.offline.replay.drafted  # noqa: F401

    sleep(5)


if __name__ == "__main__":
    main()
