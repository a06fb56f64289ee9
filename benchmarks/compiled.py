"""Compiled forward passes: the time of a pass over one token and over a draft, eager and compiled.

A target and a drafter read the same tokens after the same context, in turns. Beside them, the time to compile, the
time to do so again in another process, which finds the compiler's files on disk, and the floor: the time to read
the weights from memory once. Prints one JSON object.

    python benchmarks/compiled.py
    python benchmarks/compiled.py --models builtin:target --inflate-layers 16 --gamma 4
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

import torch
from _common import floor_seconds, forward_pass, interleaved, ratios, report, spread

from specdec_core.models import LoadedModel, compile_model, inflate, load_model, pack


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    if options.seconds_only:
        print(seconds_to_compile(load(options.models[0], options))[0])
        return
    results = [measure(name, options) for name in options.models]
    report({"benchmark": "compiled", "options": vars(options), "results": results})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["builtin:target", "builtin:drafter"])
    parser.add_argument("--inflate-layers", type=int, default=0, help="layers to add to the models")
    parser.add_argument("--inflate-width", type=int, default=8192, help="feed-forward size of those layers")
    parser.add_argument("--gamma", type=int, default=4, help="draft tokens of the wide pass")
    parser.add_argument("--rows", type=int, default=1, help="sequences of the batch")
    parser.add_argument("--context", type=int, default=64, help="number of cached tokens")
    parser.add_argument("--packed", choices=("auto", "true", "false"), default="auto")
    parser.add_argument("--repeats", type=int, default=30, help="measured rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--skip-processes", action="store_true", help="do not time compiling in other processes")
    parser.add_argument("--seconds-only", action="store_true", help="print the seconds that compiling takes")
    return parser.parse_args()


def load(name: str, options: argparse.Namespace) -> LoadedModel:
    """Load a model, inflated and packed if the options say so."""
    packed = {"true": True, "false": False, "auto": "auto"}[options.packed]
    if not options.inflate_layers:
        return load_model(name, packed=packed, compile=False)
    larger = inflate(load_model(name, packed=False, compile=False), options.inflate_layers, options.inflate_width)
    return pack(larger) if packed else larger


def seconds_to_compile(loaded: LoadedModel) -> tuple[float, LoadedModel]:
    """Compile a model; return the seconds that took, the proof included, and the model."""
    begun = perf_counter()
    compiled = compile_model(loaded)
    return round(perf_counter() - begun, 1), compiled


def in_another_process(name: str, options: argparse.Namespace, cache: str) -> float:
    """Return the seconds that compiling takes in a new process, with the compiler's files in a folder."""
    command = [sys.executable, __file__, "--seconds-only", "--models", name, "--packed", options.packed]
    command += ["--inflate-layers", str(options.inflate_layers), "--inflate-width", str(options.inflate_width)]
    command += ["--threads", str(options.threads)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(ran.stdout)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of a model."""
    loaded = load(name, options)
    compiling = {}
    if not options.skip_processes:
        with tempfile.TemporaryDirectory() as cache:
            compiling = {run: in_another_process(name, options, cache) for run in ("cold", "warm")}
    _, compiled = seconds_to_compile(loaded)
    models = {"eager": loaded, "compiled": compiled}
    widths = (0, options.gamma)
    steps = {
        f"{drafted} {how}": forward_pass(model, options.context, drafted, options.rows)
        for drafted in widths
        for how, model in models.items()
    }
    for step in [*steps.values()] * 3:  # the first passes are compared with eager ones
        step()
    seconds, _ = interleaved(steps, options.repeats)
    return {
        "model": loaded.name,
        "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
        "seconds_to_compile": compiling,
        "floor_milliseconds": round(1e3 * floor_seconds(loaded.model), 3),
        "milliseconds": {run: spread([1e3 * s for s in runs], 3) for run, runs in seconds.items()},
        "eager_over_compiled": {
            drafted: ratios(seconds[f"{drafted} eager"], seconds[f"{drafted} compiled"]) for drafted in widths
        },
    }


if __name__ == "__main__":
    main()
