"""Folders that are not what they should be: models, and results that a study resumes from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from specdec_core import compare
from specdec_core.decoding import Decoder
from specdec_core.interface import SpecdecError
from specdec_core.models import load_model
from tests.model_folder import save_model
from tests.robustness.attack import BrokenError
from tests.robustness.files import VALUES


@cache
def model() -> Path:
    """Return the folder of the model that is copied and damaged."""
    return save_model(Path(mkdtemp(prefix="specdec-model-")), "llama")


def models(random: Random, folder: Path) -> Iterator[str]:
    """A damaged model folder is refused, or decodes the same whenever it is loaded."""
    folder = folder / "model"
    shutil.copytree(model(), folder)
    did = random.choice([_without_tensors, _other_tensors, _config_changed, _torn, _pickled])(random, folder)
    yield did
    # Weights that were not read are drawn from torch's global generator.
    first, second = (_decoded(folder, seed) for seed in (1, 2))
    if first != second:
        raise BrokenError("another output each time it is loaded")


def _decoded(folder: Path, seed: int) -> Any:
    torch.manual_seed(seed)
    try:
        result = Decoder(load_model(folder), temperature=0).generate([[2, 3, 4]], max_new_tokens=6)
    except SpecdecError as error:
        return type(error)
    return result.tokens


def _without_tensors(random: Random, folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    names = random.sample(sorted(tensors), random.randint(1, 3))
    for name in names:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return f"no {', '.join(names)}"


def _other_tensors(random: Random, folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    name = random.choice(sorted(tensors))
    how = random.choice(["renamed", "cut", "wider", "NaN", "of integers", "zero-dimensional"])
    tensor = tensors.pop(name)
    changed = {
        "renamed": lambda: tensor,
        "cut": lambda: tensor[:-1].clone(),
        "wider": lambda: torch.cat([tensor, tensor]),
        "NaN": lambda: tensor * float("nan"),
        "of integers": lambda: tensor.long(),
        "zero-dimensional": lambda: torch.tensor(1.0),
    }[how]()
    tensors[f"{name}.other" if how == "renamed" else name] = changed
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return f"{name} is {how}"


def _config_changed(random: Random, folder: Path) -> str:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    key = random.choice(sorted(config))
    value = random.choice([one for one in VALUES if one is None or isinstance(one, int | str | list)])
    config[key] = value
    whole: Any = random.choice([config] * 8 + [[config], None])
    path.write_text(json.dumps(whole))
    return f"config.json: {key}={value!r:.30}" if whole is config else f"config.json is a {type(whole).__name__}"


def _torn(random: Random, folder: Path) -> str:
    path = random.choice(sorted(path for path in folder.iterdir() if path.stat().st_size))
    content = bytearray(path.read_bytes())
    if random.random() < 0.5:
        del content[random.randrange(len(content)) :]
        how = "torn"
    else:
        content[random.randrange(min(400, len(content)))] ^= 1 << random.randrange(8)
        how = "with a bit flipped"
    path.write_bytes(content)
    return f"{path.name} {how}"


def _pickled(random: Random, folder: Path) -> str:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {"a pickle": "pytorch_model.bin", "a file elsewhere": "../shard.safetensors", "none": "no.safetensors"}
    kind = random.choice(sorted(names))
    torch.save(tensors, folder / "pytorch_model.bin")
    save_file(tensors, folder.parent / "shard.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, names[kind])}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return f"an index of {kind}"


STUDY: dict[str, Any] = {
    "prompts": ["a b c", "d e"],
    "generation": {"max_new_tokens": 4, "ignore_eos": True},
    "sampling": {"temperature": 0},
    "repeats": 2,
    "runs": [{"name": "one", "drafter": "random", "gamma": 2}, {"name": "two", "drafter": "random", "gamma": 3}],
}


@cache
def results() -> tuple[Path, bytes]:
    """Return a folder of a finished study, and its outputs."""
    folder = Path(mkdtemp(prefix="specdec-results-"))
    compare({**STUDY, "target": str(model())}, folder, progress=False)
    return folder, (folder / "outputs.jsonl").read_bytes()


def journals(random: Random, folder: Path) -> Iterator[str]:
    """Results of which some lines were damaged: those alone are measured again, or the folder is refused."""
    source, outputs = results()
    folder = folder / "results"
    shutil.copytree(source, folder)
    path = folder / "repeats.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    index = random.randrange(len(lines))
    did, lines[index] = _spoiled(random, lines[index])
    yield f"line {index + 1} of {len(lines)} {did}"
    path.write_bytes(b"".join(lines))
    try:
        compare({**STUDY, "target": str(model())}, folder, progress=False)
    except SpecdecError as error:
        if index:
            raise BrokenError(f"all lines are refused for one: {str(error)[:100]}") from error
        return
    after = path.read_bytes()
    if index and not all(line in after for number, line in enumerate(lines[1:], 1) if number != index):
        raise BrokenError("sound lines are gone")
    if (folder / "outputs.jsonl").read_bytes() != outputs:
        raise BrokenError("other outputs")
    if left := [one.name for one in folder.iterdir() if one.name.endswith(".part")]:
        raise BrokenError(f"left behind: {left}")


def _spoiled(random: Random, line: bytes) -> tuple[str, bytes]:
    how = random.choice(["torn", "no JSON", "another shape", "a key less", "a value changed", "bytes", "doubled"])
    entry = json.loads(line)
    if how == "torn":
        return how, line[: random.randrange(1, len(line) - 1)] + b"\n"
    if how == "no JSON":
        return how, random.choice(
            [b"\n", b"x\n", b"\x00\x00\n", b"NaN\n", b"\xff\xfe\n", b"{}{}\n", b"9" * 5000 + b"\n"]
        )
    if how == "another shape":
        return how, random.choice(
            [b"[]\n", b"{}\n", b"null\n", b"1\n", b'"line"\n', b'{"run": "one"}\n', b"[[]]\n"]
        )
    if how == "doubled":
        return how, line + line
    if how == "bytes":
        index = random.randrange(len(line) - 1)
        return f"with byte {index} changed", line[:index] + bytes([random.randrange(256)]) + line[index + 1 :]
    key = random.choice(sorted(entry))
    if how == "a key less":
        del entry[key]
    else:
        entry[key] = random.choice([one for one in VALUES if not isinstance(one, float)])
    return f"{how} ({key})", (json.dumps(entry) + "\n").encode()
