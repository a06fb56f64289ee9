"""The provenance of a result: settings, files, prompts, versions, the code of plugins, device."""

import hashlib
import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import torch
import transformers

from specdec_core._version import code_digest, installed_version
from specdec_core.interface.spec import PluginKind
from specdec_core.registry.nesting import nested_settings
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.shipped import is_shipped
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import fingerprint_prompts
from specdec_core.study.config.study import Run, Study, Task

_READ_WHOLE = 2**30
"""Files up to this many bytes are hashed whole, which takes about a second."""
_CHUNK, _CHUNKS = 2**20, 64
"""Size and number of the chunks that are hashed of a larger file."""
_LOADED = (
    *("*.safetensors", "*.safetensors.index.json", "config.json", "*_config.json", "*.py", "*.jinja"),
    *("tokenizer*", "vocab*", "merges.txt", "*.model", "added_tokens.json", "special_tokens_map.json"),
)
"""The files of a model folder that are read when the model is loaded; no other file affects a result."""


def study_provenance(study: Study, device: str, registry: Registry) -> dict[str, Any]:
    """Return everything that must be equal for two results to belong to one study, as plain data.

    Only `plugins`, the code of each run by its name, may differ: runs whose plugins have changed are run again.
    """
    runs = [_deciding(run, defaults=True) for run in study.runs]
    tasks = [task.resolved() for task in study.tasks]
    if study.config.batch_size == 1:  # groups then decide nothing but what is reported
        for task in tasks:
            del task["prompts"]["group"]
    # More repeats can be added later, and `lossless` only rejects runs: neither changes a result.
    settings = {key: value for key, value in study.shared().items() if key not in ("repeats", "lossless")}
    prompts = [_fingerprint(task.prompts, task) for task in study.tasks]
    warmups = [{"warmup": _fingerprint(task.warmup, task)} if task.warmup else {} for task in study.tasks]
    return {
        "settings": settings,
        "tasks": [
            {**resolved, "texts": texts, **warmup, "runs": [run.name for run in task.runs]}
            for resolved, texts, warmup, task in zip(tasks, prompts, warmups, study.tasks, strict=True)
        ],
        "runs": [_deciding(run, defaults=False) for run in study.runs],  # those of a plugin belong to its code
        # Prompt files are not among them: only their texts count.
        "files": fingerprint_files([runs, [task["target"] for task in tasks]], study.folder),
        # The order changes what a warm cache or a slowing machine does to a run.
        "order": "shuffled by seed, task and repeat",
        "versions": library_versions(),
        "plugins": {run.name: plugin_code(run, registry) for run in study.runs},
        "device": device,
    }


def _deciding(run: Run, *, defaults: bool) -> dict[str, Any]:
    """Return the settings of a run that may change a result; a server may move."""
    return run.resolved(defaults=defaults) | ({} if run.engine is None else {"engine": run.engine.decides()})


def _fingerprint(prompts: Sequence[PromptText], task: Task) -> dict[str, Any]:
    return {"count": len(prompts), "sha256": fingerprint_prompts(prompts, task.chat_template)}


def library_versions() -> dict[str, str]:
    """Return the versions that every result depends on; which plugins take part depends on the runs."""
    return {
        "specdec": installed_version(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "python": platform.python_version(),
    }


def plugin_code(run: Run, registry: Registry) -> dict[str, str]:
    """Return the version and a digest of the code of each distribution whose plugins a run uses.

    The code is the Python and compiled modules in the packages that hold the plugins and their settings, as they
    are on disk now. A server's is not known.
    """
    modules = defaultdict[tuple[str, str], set[str]](set)
    todo = [] if run.engine is not None else [(kind, getattr(run, kind, None)) for kind in get_args(PluginKind)]
    for kind, config in todo:
        if config is not None:
            spec, origin = registry.spec(kind, config.name), registry.origin(kind, config.name)
            used = (spec.factory.partition(":")[0], spec.config.__module__)
            modules[origin.distribution, origin.version].update(used)
            todo += [(one.marker.kind, one.config) for one in nested_settings(config)]
    return {owner: f"{version} {code_digest(used)}".lstrip() for (owner, version), used in modules.items()}


def fingerprint_files(settings: Any, folder: Path) -> dict[str, str]:
    """Fingerprint the files and model folders that settings refer to.

    A model that was trained again has the same path, and its results belong to another study. Of a file above
    1 GiB only 64 chunks of 1 MiB are hashed, spread evenly: this detects weights that were all retrained, but may
    miss a change to a few of them. Unreadable files are skipped, as whatever loads them reports the error. Models
    on the hub are not fingerprinted; those that ship are known by the version of their distribution.

    Args:
        settings: Plain data. Values of keys called `name` are not paths.
        folder: Base for relative paths.

    Returns:
        A short hash by path, as the path was written.
    """
    found = {}
    for text in dict.fromkeys(_texts(settings)):
        if is_shipped(text):
            found[text] = default_registry().described("models", text.partition(":")[0])
            continue
        try:
            files = _files(folder / Path(text).expanduser())
            if files:
                found[text] = _hash(files)
        except (OSError, ValueError, RuntimeError):  # not a path, or the home folder of an unknown user
            continue
    return found


def _texts(settings: Any) -> Iterator[str]:
    """Yield every string in plain data that may be a path."""
    if isinstance(settings, dict):
        if settings.get("subfolder"):
            yield f"{settings.get('model')}/{settings['subfolder']}"
        for key, value in settings.items():
            if key != "name":
                yield from _texts(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from _texts(value)
    elif isinstance(settings, str) and settings:
        yield settings


def _files(path: Path) -> list[Path]:
    """Return a file, or the files that are loaded from a model folder; nothing for other folders."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        return []
    known = (file for file in path.iterdir() if any(fnmatchcase(file.name, pattern) for pattern in _LOADED))
    loaded = sorted(file for file in known if file.is_file())
    return loaded if any(file.name == "config.json" or file.suffix == ".safetensors" for file in loaded) else []


def _hash(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= _READ_WHOLE:
                whole.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for chunk in range(_CHUNKS):
                file.seek((size - _CHUNK) * chunk // (_CHUNKS - 1))
                whole.update(file.read(_CHUNK))
    return whole.hexdigest()[:16]
