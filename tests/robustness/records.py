"""Records that are not what they should be: replayed, or refused with the name of the file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specdec_core.interface import SpecdecError
from specdec_core.offline.candidate_runs import default_study
from specdec_core.offline.record import read_record
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.record.shards import checksum
from specdec_core.offline.replay import replay
from specdec_core.study import load_study
from tests.robustness.attack import BrokenError
from tests.robustness.files import VALUES, change, damaged
from tests.robustness.folders import model
from tests.study.toy_study import Recorder

_INTERNAL = re.compile(r"\b(?!Config|Model|Plugin|Prompt)[A-Z][A-Za-z]*Error\b|Traceback")
"""Texts that our messages never hold."""
_KINDS = (
    *(torch.bool, torch.int8, torch.int64, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    torch.float8_e4m3fn,
)


@cache
def record() -> Path:
    """Return the record that is copied and damaged."""
    tasks = [{"name": "greedy", "sampling": {"temperature": 0}}, {"name": "sampled"}]
    study = {
        "target": str(model()),
        "prompts": {"tokens": [[2, 3, 4], [5, 6], [7, 8, 1]]},
        "generation": {"max_new_tokens": 6, "ignore_eos": True},
        "tasks": tasks,
        "runs": [{"drafter": "random", "gamma": 2}],
    }
    path = Path(mkdtemp(prefix="specdec-record-")) / "record"
    record_study(load_study(study), path, Recorder(), RecordOptions(rows=2, samples=2, hidden=True, top_k=3))
    return path


def records(random: Random, folder: Path) -> Iterator[str]:
    """A record with something changed, and its checksum made anew, is replayed or refused with the file's name."""
    path = folder / "record"
    shutil.copytree(record(), path)
    act, refused = random.choice(_ACTS)
    yield act(random, path)
    hub = patch("specdec_core.models.load.locate.hub_options", side_effect=BrokenError("the hub is asked"))
    with (
        hub,
        patch("specdec_core.models.load.adapter.hub_options", side_effect=BrokenError("the hub is asked")),
    ):
        message = _replayed(path, random.choice(["prompt-copy", "prompt-copy", "early-exit"]))
    if message is None:
        if refused:
            raise BrokenError("accepted")
    elif _INTERNAL.search(message):
        raise BrokenError(f"an internal error: {message}")
    elif refused and not re.search(r"record\.json|shard-\d{5}|features|part-\d", message):
        raise BrokenError(f"no file is named: {message}")


def _replayed(path: Path, drafter: str) -> str | None:
    """Return why a record cannot be used; None if it can."""
    try:
        found = read_record(path)
        if drafter == "early-exit":  # as `specdec tune`, which reads every drafter's settings
            default_study(found)
        result = replay(path, [drafter], gammas=[2], progress=False)
    except SpecdecError as error:
        return str(error) or "(no message)"
    return "\n".join(result.errors) or None


def _shard(random: Random, path: Path) -> Path:
    return random.choice(sorted(path.glob("part-*/shard-*")))


def _written(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], str]) -> str:
    """Change the arrays and the metadata of a shard; return what was done."""
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        about = json.loads(file.metadata()["record"])
    before = about.copy()
    did = change(arrays, about)
    try:
        numbers = {name: array.numpy() for name, array in arrays.items()}
    except TypeError:  # numpy has no such format
        numbers = {}
    if about == before:
        about["crc32"] = checksum(numbers)
    save_file({name: array.contiguous() for name, array in arrays.items()}, path, {"record": json.dumps(about)})
    return f"{path.parent.name}/{path.name}: {did}"


def _value(random: Random, path: Path) -> str:
    """Put a value into an array that no target can have said."""

    def change(arrays: dict[str, Any], about: dict[str, Any]) -> str:
        name = random.choice(sorted(arrays))
        array = arrays[name]
        wrong: list[Any] = [-1, 10_000] if not array.is_floating_point() else [np.nan, np.inf, -np.inf]
        wrong = [200] if array.dtype == torch.uint8 else wrong
        wrong = [60_000] if array.dtype == torch.uint16 else wrong
        wrong = [-1] if name in ("numbers", "samples") else wrong
        wrong += [-0.5, 1.5] if "probabilities" in name else []
        value = random.choice(wrong)
        index = random.randrange(array.numel())
        values = array.flatten().numpy().copy()
        values[index] = value
        arrays[name] = torch.from_numpy(values).reshape(array.shape)
        return f"{name}[{index}] = {value}"

    return _written(_shard(random, path), change)


def _layout(random: Random, path: Path) -> str:
    """Give an array another number format or shape, leave one out, or add one."""

    def change(arrays: dict[str, Any], about: dict[str, Any]) -> str:
        name = random.choice(sorted(arrays))
        array = arrays[name]
        kinds = [kind for kind in _KINDS if (name, kind) != ("hidden", torch.float16)]
        acts: dict[str, Callable[[], Any]] = {
            "a number": lambda: array.flatten()[0],
            "a row": lambda: array[None],
            "flat": lambda: array.flatten() if array.ndim > 1 else array[:, None],
            "empty": lambda: array[:0],
            "shorter": lambda: array[:-1],
            "doubled": lambda: torch.cat([array, array]),
            **{str(kind): lambda kind=kind: array.to(kind) for kind in kinds},
        }
        how = random.choice([*acts, "gone", "renamed"])
        del arrays[name]
        if how == "renamed":
            arrays[f"{name}2"] = array
        elif how != "gone":
            arrays[name] = acts[how]().clone()
        return f"{name} {how}"

    return _written(_shard(random, path), change)


def _contradiction(random: Random, path: Path) -> str:
    """Make arrays contradict each other, each by itself right."""

    def change(arrays: dict[str, Any], about: dict[str, Any]) -> str:
        top, p = arrays["top_tokens"], arrays["top_probabilities"]
        acts: dict[str, Callable[[], Any]] = {
            "lengths": lambda: arrays["lengths"].add_(1),
            "prompt_lengths": lambda: arrays["prompt_lengths"].add_(1),
            "prompt_lengths [-3, n + 3]": lambda: arrays["prompt_lengths"][0].sub_(9),
            "a doubled text": lambda: (arrays["numbers"].zero_(), arrays["samples"].zero_()),
            "top_tokens doubled": lambda: arrays.update(top_tokens=torch.stack([top[:, 0]] * 3, dim=1)),
            "top_probabilities ascending": lambda: arrays.update(top_probabilities=p.flip(1)),
            "top_probabilities beyond 1": lambda: p.fill_(0.9),
        }
        if "probabilities" in arrays:
            acts["probabilities of 1"] = lambda: arrays["probabilities"].fill_(1)
            acts["top_probabilities of 0"] = lambda: p.fill_(0)
        how = random.choice(sorted(acts))
        acts[how]()
        return how

    return _written(_shard(random, path), change)


def _metadata(random: Random, path: Path) -> str:
    def change(arrays: dict[str, Any], about: dict[str, Any]) -> str:
        key = random.choice(sorted(about))
        numbers = (about[key] + 1, about[key] - 1, True, 1.5, [1], {"a": 1})
        value = random.choice([one for one in (*numbers, *VALUES) if (one, key) != (True, "specdec_record")])
        value = -1 if value == about[key] else value
        about[key] = value
        return f"{key}={value!r:.30}"

    return _written(_shard(random, path), change)


def _nested(random: Random, path: Path) -> str:
    shard = _shard(random, path)
    deep = random.choice(["[", '{"a":']) * 100_000
    save_file(load_file(shard), shard, {"record": deep})
    return f"{shard.name}: deeply nested metadata"


def _header(random: Random, path: Path) -> str:
    file = path / "record.json"
    data = json.loads(file.read_bytes())
    did = [change(random, data) for _ in range(random.randint(1, 2))]
    file.write_text(json.dumps(data))
    return f"record.json: {'; '.join(did)}"


def _target(random: Random, path: Path) -> str:
    file = path / "record.json"
    data = json.loads(file.read_bytes())
    key = random.choice([*data["target"], "trust_remote_code", "other"])
    value = random.choice([*VALUES, "evil/model", ["evil/model"], {"model": "evil/model"}])
    data["target"][key] = value
    file.write_text(json.dumps(data))
    return f"record.json: target.{key}={value!r:.30}"


_TIMES = {"device": "cpu (x)", "verify": [1e-300, 1e300], "overhead": 1e300}
_PLAUSIBLE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("vocab_size", (8, 10, 65_537, 10**12)),
    ("eos_ids", ([], [10**12], [0, 1, 2])),
    ("start_id", (0, 8, 10**12)),
    ("max_length", (1, 10**12)),
    ("hidden_size", (None, 1, 10**12)),
    ("top_k", (0, 1, 9, 10**12)),
    ("times", (_TIMES, {**_TIMES, "batch_size": 10**12}, {**_TIMES, "verify": [1e-320] * 9})),
    ("tokenizer", (None, "x")),
    ("fingerprint", (None, "x")),
    ("source", ("x",)),
    ("parts.0.task", (None, "", "sampled", "\x1b[31m")),
    ("parts.0.texts", (0, 1, 10**12)),
    ("parts.1.prompts.count", (0, 10**12)),
    ("parts.1.prompts.settings", (None, {"dataset": "evil/data"}, {"file": "/dev/zero"}, {"builtin": "heldout"})),
    ("parts.1.generation.max_new_tokens", (1, 10**12)),
    ("parts.1.generation.seed", (2**63, 2**64 - 1)),
    ("parts.0.generation.beams", (4, 10**12)),
    ("parts.1.generation.stop", (["x"],)),
    ("parts.1.generation.constraint", ({"regex": "("}, {"regex": "a+"}, {"json_schema": {"type": 1}})),
    ("parts.1.sampling.temperature", (0, 1e-300, 1e300)),
    ("parts.1.sampling.top_k", (1, 10**12)),
    ("parts.1.sampling.repetition_penalty", (1e-300, 1e300)),
    ("target.dtype", ("float16", "bfloat16")),
    ("target.device", ("", "x", "cuda:9", "meta")),
    ("target.device_map", ("auto", "x", {}, {"": "meta"})),
    ("target.attn_implementation", ("eager", "flash_attention_2")),
    ("target.quantization_config", ({}, {"quant_method": "x"}, {"load_in_4bit": True})),
    ("target.inflate", ({"layers": 1}, {"layers": 1, "width": 10**12})),
    ("target.tensor_parallel", (2, 10**12)),
    ("target.subfolder", ("x", "..")),
    ("target.revision", ("x",)),
)
"""Keys of a header with values of their types that it does not hold."""


def _plausible(random: Random, path: Path) -> str:
    file = path / "record.json"
    data = json.loads(file.read_bytes())
    key, values = random.choice(_PLAUSIBLE)
    value = random.choice(values)
    inside: Any = data
    *outer, last = key.split(".")
    for name in outer:
        inside = inside[int(name) if isinstance(inside, list) else name]
    inside[last] = value
    file.write_text(json.dumps(data))
    return f"record.json: {key}={value!r:.30}"


def _bytes(random: Random, path: Path) -> str:
    file = random.choice(sorted(one for one in path.rglob("*") if one.is_file() and one.name != ".lock"))
    before = file.read_bytes()
    file.write_bytes(damaged(random, before))
    return f"{file.name} with some bytes changed"


def _file(random: Random, path: Path) -> str:
    """Put something else instead of a file."""
    others = path / "record.json", path / "features.safetensors"
    file = random.choice([*sorted(path.glob("part-*/shard-*")), *others])
    file.unlink()
    kind = random.choice(["a named pipe", "a folder", "an empty file", "/dev/zero"])
    {
        "a named pipe": lambda: os.mkfifo(file),
        "a folder": file.mkdir,
        "an empty file": file.touch,
        "/dev/zero": lambda: file.symlink_to("/dev/zero"),
    }[kind]()
    return f"{file.name} is {kind}"


_ACTS: tuple[tuple[Callable[[Random, Path], str], bool], ...] = (
    *((one, True) for one in (_value, _layout, _contradiction, _metadata, _nested, _file)),
    *((one, False) for one in (_header, _plausible, _plausible, _target, _bytes)),
)
"""The change, and whether the record must then be refused."""
