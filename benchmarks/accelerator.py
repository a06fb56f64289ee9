"""All that needs an accelerator, in one command of at most ten minutes and one JSON file.

Parts:

* `tests`: the tests that use a device (`pytest --device cuda`): losslessness, caches and rollback.
* `framework`: a step with models so small that the rest of the step is what takes the time.
* `verify`: T(k), the time in which a target verifies k draft tokens, for k up to 16.
* `pairs`: c, acceptance, and tokens per second of the built-in pair in bfloat16, the target inflated to 1B, 3B and
  7B parameters, the drafter to 60M and 160M: against autoregressive decoding of specdec and of transformers, and
  against the assisted generation of transformers, which takes one sequence at a time.

specdec runs eagerly and with `compile`, which on a GPU captures a step and replays it. A part that takes longer
than its share of the time is stopped. The file names what is missing, and the same command makes up for it.

    python benchmarks/accelerator.py --out accelerator.json
    python benchmarks/accelerator.py --parts verify pairs --targets 1B --out accelerator.json
    python benchmarks/accelerator.py --device cpu --smoke      # tiny shapes: shows that it runs
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from _common import Results, progress
from _device import DRAFTERS, MODES, SMOKE, TARGETS, LeftOutError, Plan, time_drafts, time_pairs, time_small
from transformers.utils import logging as hf_logging

ROOT = Path(__file__).parent.parent
SHARES = {"tests": 0.4, "framework": 0.1, "verify": 0.1, "pairs": 0.4}
"""The parts, and their shares of the time. What one leaves over goes to those after it."""


Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""The key of a row, and what measures it."""


def main() -> None:
    """Run the parts, each in a separate process, and print the result.

    Raises:
        SystemExit: A measurement failed. Others are complete.
    """
    options = parse()
    results = open_results(options)
    if options.child:
        run_part(options, results)
        return
    deadline = monotonic() + 60 * options.budget_minutes
    for number, part in enumerate(options.parts):
        share = SHARES[part] / sum(SHARES[later] for later in options.parts[number:])
        if not all(is_done(results, key) for key, _ in jobs(options, [part])):
            run_process(part, share * (deadline - monotonic()))
    results = open_results(options)
    results.write(missing=missing(options, results))
    print(json.dumps(results.data, indent=1))
    if any("failed" in row for row in results.data["rows"]):
        raise SystemExit("Some measurements failed: see `failed` and `traceback` in the file.")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("accelerator.json"), help="JSON file, which is continued")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--parts", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="how specdec runs")
    parser.add_argument("--budget-minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes of pytest")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, and a few tests")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)  # seconds of a part in its own process
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU. --device cpu --smoke shows that the script runs.")
    torch.set_num_threads(options.threads)
    if options.smoke:
        options.workers = 0
    options.plan = SMOKE if options.smoke else Plan({name: TARGETS[name] for name in options.targets}, DRAFTERS)
    return options


def open_results(options: argparse.Namespace) -> Results:
    """Return the results that the file holds so far."""
    settings = {name: getattr(options, name) for name in ("device", "dtype", "smoke", "modes")}
    return Results(options.out, "accelerator", settings)


def run_process(part: str, seconds: float) -> None:
    """Run a part in a separate process, which can be stopped, and with which errors of the device end."""
    deadline = monotonic() + seconds
    for _ in range(3):
        left = max(deadline - monotonic(), 1)
        progress(f"{part}: {left:.0f} s")
        arguments = ["--parts", part, "--child", str(left), "--threads", str(torch.get_num_threads())]
        command = [sys.executable, __file__, *sys.argv[1:], *arguments]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            if child.wait(left + 10) == 0:
                return
        except subprocess.TimeoutExpired:
            progress(f"{part}: stopped after its share of the time")
            return
        finally:
            with suppress(ProcessLookupError):  # pytest and its workers too
                os.killpg(child.pid, signal.SIGKILL)


def run_part(options: argparse.Namespace, results: Results) -> None:
    """Measure the rows of a part that are missing, as far as time allows; those that failed come last.

    Raises:
        SystemExit: An error made the device unusable for this process.
    """
    torch.manual_seed(0)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    options.deadline, longest = monotonic() + options.child, 0.0
    todo = [job for job in jobs(options, options.parts) if not is_done(results, job[0])]
    for key, measure in sorted(todo, key=lambda job: results.row(job[0]) is not None):
        started = monotonic()
        if started + (longest if key["part"] != "tests" else 0.0) > options.deadline:  # tests end in time
            results.add(key, {"left_out": f"its part had {options.child:.0f} s"})
            continue
        try:
            with warnings.catch_warnings(record=True) as caught:
                row = measure()
            row |= {"warnings": sorted({str(warning.message) for warning in caught})} if caught else {}
        except LeftOutError as reason:
            row = {"left_out": str(reason)}
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
        gc.collect()  # frees the device's memory
        longest = max(longest, monotonic() - started)
        results.add(key, {**row, "seconds": round(monotonic() - started, 1)})
        progress(f"  {describe(key)}: {row.get('failed') or row.get('left_out') or 'done'}")
        if "failed" in row and options.device.startswith("cuda"):
            torch.cuda.synchronize()  # raises after an error from which CUDA does not recover


def is_done(results: Results, key: dict[str, Any]) -> bool:
    """Return whether a row was measured."""
    row = results.row(key)
    return row is not None and not {"failed", "left_out"} & row.keys()


def missing(options: argparse.Namespace, results: Results) -> dict[str, str]:
    """Return the rows that were not measured, with the reason."""
    found = {
        describe(key): results.row(key) for key, _ in jobs(options, options.parts) if not is_done(results, key)
    }
    return {
        name: "not reached" if row is None else row.get("failed") or row["left_out"] for name, row in found.items()
    }


def describe(key: dict[str, Any]) -> str:
    """Return a key as messages show it."""
    return " ".join(str(value) if name == "part" else f"{name}={value}" for name, value in key.items())


def jobs(options: argparse.Namespace, parts: Sequence[str]) -> Iterator[Job]:
    """Yield the rows of some parts, in the order in which they are measured."""
    plan: Plan = options.plan
    small = product(options.modes, plan.batch_sizes[:2], plan.temperatures)
    rows: dict[str, list[Job]] = {
        "tests": [
            ({"part": "tests", "mode": mode}, lambda mode=mode: run_tests(options, mode)) for mode in options.modes
        ],
        "framework": [
            (
                {"part": "framework", "mode": mode, "batch_size": size, "temperature": temperature},
                lambda mode=mode, size=size, temperature=temperature: time_small(options, mode, size, temperature),
            )
            for mode, size, temperature in small
        ],
        "verify": [
            (
                {"part": "verify", "target": target, "mode": mode},
                lambda target=target, mode=mode: time_drafts(options, target, mode),
            )
            for target, mode in product(plan.targets, options.modes)
        ],
        "pairs": [
            (
                {"part": "pairs", "target": target, "batch_size": size, "temperature": temperature},
                lambda target=target, size=size, temperature=temperature: time_pairs(
                    options, target, size, temperature
                ),
            )
            for temperature, target, size in product(plan.temperatures, plan.targets, plan.batch_sizes)
        ],
    }
    for part in parts:
        yield from rows[part]


def run_tests(options: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Run the tests that use the device; return how many passed, and which failed."""
    left = options.deadline - monotonic()
    seconds = max(left / (len(options.modes) - options.modes.index(mode)) - 15, 1)  # without starting and ending
    command = [sys.executable, "-m", "pytest", f"--device={options.device}", f"--session-timeout={seconds:.0f}"]
    command += ["-rfE", "--tb=line", "--color=no", "-n", str(options.workers), *options.plan.tests]
    if MODES[mode]["compile"]:
        command.append(f"--compile={'device' if options.device.startswith('cuda') else 'fixed'}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    counts = {
        name: int(count) for count, name in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout)
    }
    if not counts:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    found = {"counts": counts, "failures": re.findall(r"^(?:FAILED|ERROR) (.+)$", done.stdout, re.MULTILINE)[:100]}
    stopped = "session-timeout" in done.stdout
    return found | ({"left_out": f"tests were stopped after {seconds:.0f} s"} if stopped else {})


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
