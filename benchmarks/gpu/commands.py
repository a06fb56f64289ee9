"""The three commands of `benchmarks/gpu/run`: their options, their time, their results.

Each is a list of measurements, the most telling first. They run in another process, which is stopped when the
time is over, and begun again after an error from which CUDA does not recover. Each result is written as it is
there, and the same command measures only what is missing or failed.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import choose
import correctness
import speed
import torch
from _common import Results, progress
from gpu_tables import TABLES, is_done, missing
from plans import FULL, TINY, Job, LeftOutError, Run
from transformers.utils import logging as hf_logging

from tests import simulated_gpu

COMMANDS: dict[str, Callable[[Run], list[Job]]] = {
    "correctness": correctness.jobs,
    "speed": speed.jobs,
    "choose": choose.jobs,
}
ENDED = "the process ended"
"""What a row says while it is measured."""


def main() -> None:
    """Measure what is missing, and print the table.

    Raises:
        SystemExit: A measurement failed. Others are complete.
    """
    options = parse()
    run = prepared(options)
    results = opened(options, run)
    jobs = COMMANDS[options.command](run)
    if options.child:
        measure_all(run, jobs, results)
        return
    if not all(is_done(results.row(key)) for key, _ in jobs):
        run_process(options)
    results = opened(options, run)
    for row in results.data["rows"]:
        if row.get("failed") == ENDED and row["tries"] <= 1:
            results.add(row["key"], {"left_out": "stopped, as the time was over"})
    left = missing(results.row, [key for key, _ in jobs])
    results.write(missing=left)
    results.write(table=TABLES[options.command](results.data))  # docs/benchmark_tables.py shows it
    print(results.data["table"], flush=True)
    failed = [name for name, reason in left.items() if reason.startswith("failed")]
    if failed:
        raise SystemExit(f"failed, with `traceback` in the file: {', '.join(failed)}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument(
        "--out", type=Path, default=Path("results/gpu"), help="folder of the JSON files, continued"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="0: print what was measured before")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:simulated or cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="", metavar="WORD", help="measurements whose name has this word")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes of pytest")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes and few tests: shows that all of it runs")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)  # seconds of the process that measures
    return parser.parse_args()


def prepared(options: argparse.Namespace) -> Run:
    """Return what measurements need to know of the options.

    Raises:
        SystemExit: There is no such device.
    """
    if options.device.startswith("cuda"):
        reason = simulated_gpu.prepare(options.device)
        if reason or (options.device == "cuda" and simulated_gpu.installed()):
            raise SystemExit(
                "torch finds no GPU. `--device cpu --tiny` shows that the commands run; so does `--device "
                f"cuda:simulated --tiny`{f' where it can be: {reason}' if reason else ''}."
            )
    torch.set_num_threads(1)
    os.environ["SPECDEC_PLUGINS"] = "specdec-core"
    return Run(
        command=options.command,
        device=options.device.removesuffix(":simulated"),
        asked=options.device,
        dtype=options.dtype,
        workers=options.workers,
        only=options.only,
        outcomes=options.out / f"outcomes-{device_name(options)}.jsonl",
        plan=TINY if options.tiny else FULL,
        deadline=monotonic() + (options.child or 60 * options.minutes),
    )


def device_name(options: argparse.Namespace) -> str:
    """Return a name for files: results of another device are in another file."""
    real = options.device == "cuda"
    name = torch.cuda.get_device_name() if real else options.device
    return re.sub(r"[^A-Za-z0-9]+", "-", name + ("-tiny" if options.tiny else ""))


def opened(options: argparse.Namespace, run: Run) -> Results:
    """Return the results that the file holds so far."""
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {"device": run.asked, "dtype": run.dtype, "tiny": options.tiny}
    return Results(options.out / f"{run.command}-{device_name(options)}.json", f"gpu {run.command}", settings)


def run_process(options: argparse.Namespace) -> None:
    """Measure in another process, which is stopped when the time is over, or when this one is."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped: the same command continues"))
    deadline = monotonic() + 60 * options.minutes
    while (left := deadline - monotonic()) > 5:
        child = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--child", str(left)], start_new_session=True
        )
        try:
            if child.wait(left) == 0:
                return
            progress("the process ended with an error, and is begun again")
        except subprocess.TimeoutExpired:
            progress("stopped: the time is over")
        finally:
            with suppress(ProcessLookupError):  # pytest and its workers too
                os.killpg(child.pid, signal.SIGKILL)


def measure_all(run: Run, jobs: list[Job], results: Results) -> None:
    """Measure what is missing, as far as time allows; what failed comes last.

    Raises:
        RuntimeError: The device cannot be used any more by this process.
    """
    torch.manual_seed(0)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    todo = [job for job in jobs if not is_done(results.row(job[0]))]
    todo.sort(key=lambda job: failures(results.row(job[0])))
    for key, measure in todo:
        if failures(results.row(key)) > 2:  # this one ends the process
            continue
        # Written first: where the process dies, the next one knows in what.
        tries = failures(results.row(key)) + 1
        results.add(key, {"failed": ENDED, "tries": tries})
        started = monotonic()
        try:
            with warnings.catch_warnings(record=True) as caught:
                row = measure()
            row |= {"warnings": sorted({str(warning.message) for warning in caught})} if caught else {}
        except LeftOutError as reason:
            row = {"left_out": str(reason)}
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
            row["tries"] = tries
        gc.collect()  # frees the device's memory
        results.add(key, {**row, "seconds": round(monotonic() - started, 1)})
        progress(f"{' '.join(map(str, key.values()))}: {told(row)} ({monotonic() - started:.1f} s)")
        if "failed" in row and run.device.startswith("cuda"):
            torch.cuda.synchronize()


def failures(row: dict[str, Any] | None) -> int:
    """Return how often a measurement has failed."""
    return (row or {}).get("tries", 0)


def told(row: dict[str, Any]) -> str:
    """Return a row in some words."""
    numbers = [f"{name} {value}" for name, value in row.items() if isinstance(value, int | float)]
    return row.get("failed") or row.get("left_out") or ", ".join(numbers) or "done"


if __name__ == "__main__":
    main()
