"""Shared by `accelerator.py`: what is measured on a GPU, and how."""

from __future__ import annotations

import argparse
import gc
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from _against import (
    ASSISTED,
    BASELINE,
    Cell,
    SpecdecCell,
    TransformersCell,
    Work,
    batches_of,
    compared,
    drafter_of,
    transformers_methods,
)
from _common import interleaved, memory_bandwidth, random_llama, ratios, spread, weight_bytes

from specdec_core.costs.step_costs import measured_costs
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.timing import watch_steps
from specdec_core.interface import Drafter
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import LoadedModel, compile_model, inflate, load_model
from specdec_core.models.device import available_memory
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig


@dataclass(frozen=True)
class Shape:
    """A model with the costs of a larger one: layers added to a built-in model, and their feed-forward size."""

    layers: int
    width: int


TESTS = tuple(
    f"tests/{name}"
    for name in (
        "models",
        "decoding",
        "test_lossless_drafters.py",
        "drafters",
        "plugins",
        "measurement",
        "record",
        "testing",
    )
)
"""Where tests use a device; what matters most comes first."""
TARGETS = {"1B": Shape(16, 80_128), "3B": Shape(28, 138_688), "7B": Shape(32, 284_096)}
DRAFTERS = {"60M": Shape(6, 12_416), "160M": Shape(10, 20_480)}
MODES = {"eager": {"compile": False}, "captured": {"compile": True}}


@dataclass(frozen=True)
class Plan:
    """The models and settings of a measurement.

    Attributes:
        targets: Shapes of targets, inflated from `builtin:target`.
        drafters: Shapes of drafters, inflated from `builtin:drafter`.
        batch_sizes: Sequences decoded together.
        temperatures: 0 for greedy decoding.
        gamma: Tokens drafted in a step.
        longest: The longest draft for which T(k) is measured.
        tokens: New tokens of each sequence.
        repeats: Measured rounds, and timings of each draft length.
        small: Vocabulary and hidden size of the models of `framework`.
        tests: What pytest runs.
    """

    targets: dict[str, Shape]
    drafters: dict[str, Shape]
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    gamma: int = 4
    longest: int = 16
    tokens: int = 48
    repeats: int = 3
    small: tuple[int, int] = (32_000, 128)
    tests: tuple[str, ...] = TESTS


SMOKE = Plan(
    targets={"tiny": Shape(1, 64)},
    drafters={"tiny": Shape(1, 32)},
    batch_sizes=(1, 2),
    temperatures=(0.0,),
    gamma=2,
    longest=2,
    tokens=4,
    repeats=1,
    small=(100, 16),
    tests=("tests/models/test_session.py", "-k", "rollback"),
)


class LeftOutError(Exception):
    """A row that cannot be measured here; the message is the reason."""


# --- models --------------------------------------------------------------------------------------------------


_loaded: dict[str, dict[str, LoadedModel]] = {}


def load_target(name: str, options: argparse.Namespace) -> dict[str, LoadedModel]:
    """Return a target with a shape in each mode. They share their weights. Only the last one is kept.

    Raises:
        LeftOutError: It does not fit in the device's memory.
        RuntimeError: It cannot be captured, with the reason.
    """
    if name not in _loaded:
        _loaded.clear()
        gc.collect()
        settings = {"device": options.device, "dtype": options.dtype, "packed": False, "compile": False}
        original, shape = load_model("builtin:target", **settings), options.plan.targets[name]
        check_memory(name, original, shape)
        target = inflate(original, shape.layers, shape.width)
        _loaded[name] = {mode: captured(target) if MODES[mode]["compile"] else target for mode in options.modes}
    return _loaded[name]


def captured(loaded: LoadedModel) -> LoadedModel:
    """Return a compiled model.

    Raises:
        RuntimeError: It cannot be compiled, with the reason.
    """
    with warnings.catch_warnings(record=True) as caught:
        compiled = compile_model(loaded)
    if compiled.passes is None:
        raise RuntimeError("; ".join(str(warning.message) for warning in caught))
    return compiled


def check_memory(name: str, original: LoadedModel, shape: Shape) -> None:
    """Reject a shape whose weights leave less than a tenth of the free memory.

    Raises:
        LeftOutError: With the sizes.
    """
    hidden, item = original.model.config.hidden_size, next(original.model.parameters()).itemsize
    needed = shape.layers * (4 * hidden + 3 * shape.width) * hidden * item
    cuda = original.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    free = available_memory(original.device)
    if free is not None and needed > 0.9 * free:
        raise LeftOutError(f"{name} takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def load_drafter(target: LoadedModel, shape: Shape, mode: str, options: argparse.Namespace) -> Drafter:
    """Return the transformer drafter on a model with a shape."""
    settings = {"model": "builtin:drafter", "device": options.device, "dtype": options.dtype, "packed": False}
    drafter = drafter_of("transformer", target, **settings, **MODES[mode])
    drafter.loaded = inflate(drafter.loaded, shape.layers, shape.width)
    return drafter


def prompts_for(target: LoadedModel, count: int) -> list[list[int]]:
    """Return token ids of prompts; they repeat if there are not enough."""
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=count), Path())
    ids = [target.tokenizer(prompt.text)["input_ids"] for prompt in texts]
    return [ids[number % len(ids)] for number in range(count)]


# --- measurements --------------------------------------------------------------------------------------------


def time_small(options: argparse.Namespace, mode: str, batch_size: int, temperature: float) -> dict[str, Any]:
    """Time steps with small random models, a target of four layers and a drafter of one."""
    plan: Plan = options.plan
    vocab, hidden = plan.small
    with tempfile.TemporaryDirectory() as folder:
        for name, layers in (("target", 4), ("drafter", 1)):
            random_llama(vocab, layers, hidden).save_pretrained(Path(folder) / name)
        settings = {"device": options.device, "dtype": options.dtype, "packed": False, **MODES[mode]}
        target = load_model(Path(folder) / "target", **settings)
        drafter = drafter_of("transformer", target, model=str(Path(folder) / "drafter"), **settings)
    sampling = SamplingSettings(temperature=temperature)
    decoder = Decoder(target, drafter, gamma=plan.gamma, sampling=sampling, strict=True)
    generation = GenerationSettings(max_new_tokens=2 * plan.tokens, ignore_eos=True)
    prompts = torch.randint(0, vocab, (batch_size, 100)).tolist()
    decoder.generate(prompts, generation)
    steps = [
        one for one in decoder.stream(prompts, generation) if one.step and max(one.outcome.drafted) == plan.gamma
    ]
    return {
        "step_ms": spread([1e3 * one.step_seconds for one in steps]),
        "draft_ms": spread([1e3 * one.draft_seconds for one in steps]),
        "verify_ms": spread([1e3 * one.verify_seconds for one in steps]),
        "rest_ms": spread([1e3 * (one.step_seconds - one.draft_seconds - one.verify_seconds) for one in steps]),
    }


def time_drafts(options: argparse.Namespace, name: str, mode: str) -> dict[str, Any]:
    """Time the verification of drafts of each length."""
    plan: Plan = options.plan
    target = load_target(name, options)[mode]
    reports = watch_steps(
        target,
        prompts_for(target, 8),
        gamma=plan.longest,
        timings=3 * plan.repeats,
        sampling=SamplingSettings(temperature=0),
    )
    seconds = measured_costs(reports, plan.longest).verify
    floor = weight_bytes(target.model) / bandwidth(options.device)
    return {
        "parameters": target.model.num_parameters(),
        "floor_ms": round(1e3 * floor, 4),
        "verify_ms": [round(1e3 * one, 4) for one in seconds],
        "relative": [round(one / seconds[0], 3) for one in seconds],
    }


@lru_cache(maxsize=1)
def bandwidth(device: str) -> float:
    """Return the bytes per second at which the device reads memory."""
    return memory_bandwidth(device)


def time_pairs(options: argparse.Namespace, name: str, batch_size: int, temperature: float) -> dict[str, Any]:
    """Time a target with each drafter, eagerly and captured, and transformers with the same models, in turns."""
    plan: Plan = options.plan
    targets = load_target(name, options)
    plain = next(iter(targets.values()))
    work = Work(batches_of(prompts_for(plain, batch_size), batch_size), plan.tokens, plan.gamma, temperature)
    ours: dict[str, SpecdecCell] = {}
    theirs = {BASELINE: TransformersCell(work, plain)}
    for mode, target in targets.items():
        ours[f"{mode}/{BASELINE}"] = SpecdecCell(work, target, None)
        for draft, shape in plan.drafters.items():
            drafter = load_drafter(target, shape, mode, options)
            ours[f"{mode}/{draft}"] = SpecdecCell(work, target, drafter)
            arguments = transformers_methods(work, drafter.loaded)
            if ASSISTED in arguments:  # neither uses what was compiled
                theirs[draft] = TransformersCell(work, plain, **arguments[ASSISTED])
    cells: dict[str, Cell] = {**ours, **{f"transformers/{method}": cell for method, cell in theirs.items()}}
    seconds, _ = interleaved(cells, plan.repeats)
    floor = weight_bytes(plain.model) / bandwidth(options.device)
    rows = []
    for label, cell in ours.items():
        mode, _, method = label.partition("/")
        against = method if method in theirs else BASELINE
        found = compared(
            (cell, seconds[label]),
            (theirs[against], seconds[f"transformers/{against}"]),
            ours[f"{mode}/{BASELINE}"].total,
            floor,
        )
        over = ratios(seconds[f"{options.modes[-1]}/{BASELINE}"], seconds[label])
        rows.append({"mode": mode, "drafter": method, "against": against, **found, "over_baseline": over})
    return {"parameters": plain.model.num_parameters(), "floor_ms": round(1e3 * floor, 4), "rows": rows}
