"""`benchmarks/gpu/run choose`: what `compile` should default to, what it costs in memory, and a soak."""

from __future__ import annotations

import random
from itertools import product
from time import monotonic, perf_counter
from typing import Any

import torch
from _common import forward_pass, interleaved, ratios, spread, weight_bytes
from plans import Job, Run, compiled
from speed import METHODS, bandwidth, bytes_read, decode, decoder_of, drafter_for, peak, prompts, reset_peak

from specdec_core.interface.settings import GenerationSettings
from specdec_core.models.device import synchronize

DRAFTED = (0, 4, 16)
"""Draft tokens of the passes that are timed."""


def jobs(run: Run) -> list[Job]:
    """Return the measurements: the passes of each shape, memory, then the soak."""
    shapes = list(dict.fromkeys([*run.plan.drafters, *run.plan.drafters.values()]))
    (context, _), *_ = run.plan.cells
    long = max(run.plan.cells, key=lambda cell: cell[0] * cell[1])
    found: list[Job] = []
    for shape, rows in product(shapes, (1, 8)):
        key = {"part": "passes", "model": shape, "context": context, "batch": rows}
        found.append((key, lambda shape=shape, rows=rows: passes(run, shape, context, rows)))
    target = next(iter(run.plan.drafters))
    for (deep, rows), mode, method in product(((context, 1), long), run.modes, METHODS[:2]):
        key = {"part": "memory", "target": target, "context": deep, "batch": rows, "mode": mode, "method": method}
        found.append(
            (
                key,
                lambda deep=deep, rows=rows, mode=mode, method=method: memory(
                    run, target, deep, rows, mode, method
                ),
            )
        )
    found.insert(len(shapes) * 2, ({"part": "soak", "target": list(run.plan.drafters)[-1]}, lambda: soak(run)))
    return run.selected(found)


def allocated(run: Run) -> int:
    """Return the bytes of the device in use by this process; 0 where nothing counts them."""
    if not run.real:
        return 0
    synchronize(torch.device(run.device))
    return torch.cuda.memory_allocated()


def passes(run: Run, shape: str, context: int, rows: int) -> dict[str, Any]:
    """Time the passes of a model eagerly and compiled, and compiling; say after how many passes it has paid."""
    loaded, before = run.model(shape), allocated(run)
    begun = perf_counter()
    made = compiled(loaded)
    functions = {
        f"{how} {drafted}": forward_pass(model, context, drafted, rows)
        for drafted in DRAFTED
        for how, model in (("eager", loaded), ("compiled", made))
    }
    for function in [*functions.values()] * 3:  # the first passes are compared with eager ones
        function()
    seconds_to_compile = perf_counter() - begun
    seconds, _ = interleaved(functions, 5 * run.plan.rounds)
    saved = sum(seconds["eager 4"]) / len(seconds["eager 4"]) - sum(seconds["compiled 4"]) / len(
        seconds["compiled 4"]
    )
    floor = bytes_read(loaded, context, rows) / bandwidth(run)
    return {
        "seconds_to_compile": round(seconds_to_compile, 2),
        "floor_ms": round(1e3 * floor, 3),
        "ms": {name: spread([1e3 * one for one in spent], 3) for name, spent in seconds.items()},
        "eager_over_compiled": {
            drafted: ratios(seconds[f"eager {drafted}"], seconds[f"compiled {drafted}"]) for drafted in DRAFTED
        },
        "pays_after_passes": round(seconds_to_compile / saved) if saved > 0 else None,
        "more_gigabytes": round((allocated(run) - before) / 1e9, 3),
    }


def memory(run: Run, shape: str, context: int, rows: int, mode: str, method: str) -> dict[str, Any]:
    """Return the most memory that a text takes, beside that of the weights."""
    run.forget()
    target, drafter = run.model(shape, mode=mode), drafter_for(run, shape, mode, method)
    weights = weight_bytes(target.model) + (weight_bytes(drafter.loaded.model) if method == "transformer" else 0)
    reset_peak(run)
    decode(run, decoder_of(run, target, drafter), prompts(context, rows))
    whole = peak(run)
    return {
        "weights_gigabytes": round(weights / 1e9, 2),
        "peak_gigabytes": round(whole / 1e9, 2),
        "rest_gigabytes": round((whole - weights) / 1e9, 2) if run.real else None,
    }


def soak(run: Run) -> dict[str, Any]:
    """Decode texts of all lengths, in batches of all sizes, with all drafters in turn; watch memory and errors."""
    shape, chance = list(run.plan.drafters)[-1], random.Random(0)
    target = run.model(shape, mode="compiled")
    drafters = {method: drafter_for(run, shape, "compiled", method) for method in METHODS[:3]}
    decoders = {method: decoder_of(run, target, drafter) for method, drafter in drafters.items()}
    begun = monotonic()
    seconds = min(run.plan.soak, max(run.left - 10, 1))
    used: list[tuple[float, int]] = []
    texts = tokens = 0
    while (passed := monotonic() - begun) < seconds:
        rows, context = chance.randint(1, 8), chance.randint(16, 512)
        settings = GenerationSettings(max_new_tokens=chance.randint(8, 96), ignore_eos=True, seed=texts)
        result = decoders[chance.choice(METHODS[:3])].generate(prompts(context, rows), settings)
        if result.failures:
            raise RuntimeError(f"a drafter failed: {result.failures}")
        texts, tokens = texts + rows, tokens + sum(len(one.tokens) for one in result)
        used.append((passed, allocated(run)))
    if target.passes is None or target.passes.failed:
        raise RuntimeError(f"its passes run eagerly since: {target.passes and target.passes.failed}")
    half = [bytes_ for passed, bytes_ in used if passed < seconds / 2]
    return {
        "soaked_seconds": round(seconds),
        "texts": texts,
        "tokens": tokens,
        "most_gigabytes": round(max(bytes_ for _, bytes_ in used) / 1e9, 2),
        "grown_gigabytes_in_second_half": round((max(bytes_ for _, bytes_ in used) - max(half)) / 1e9, 3),
    }
