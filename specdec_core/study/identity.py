"""What a result was made from: settings, prompts, versions, device."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

import specdec_core
from specdec_core.named_files import digests
from specdec_core.registry import Registry
from specdec_core.study.prompts import digest_of
from specdec_core.study.study import Study, Task


def describe_study(study: Study, device: torch.device, registry: Registry) -> dict[str, Any]:
    """Return all that must be equal for two results to be of one study, as plain data."""
    runs = [run.resolved() for run in study.runs]
    tasks = [task.resolved() for task in study.tasks]
    # More repeats of the same are welcome, and what a study forbids changes no result.
    settings = {key: value for key, value in study.shared().items() if key not in ("repeats", "lossless")}
    return {
        "settings": settings,
        "tasks": [
            {**said, "texts": _describe_prompts(task), "runs": [run.name for run in task.runs]}
            for said, task in zip(tasks, study.tasks, strict=True)
        ],
        "runs": runs,
        # Not those of prompts, of which only the texts count.
        "files": digests([runs, [task["target"] for task in tasks]], study.folder),
        "versions": versions(registry),
        "device": describe_device(device),
    }


def versions(registry: Registry) -> dict[str, str]:
    """Return the versions of what decides a result: this package, its libraries, the plugins."""
    plugins = {record.distribution: record.version for record in registry.records() if record.state == "ready"}
    plugins.pop("specdec-core", None)
    return {
        "specdec": specdec_core.__version__,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "python": platform.python_version(),
        **plugins,
    }


def describe_device(device: torch.device) -> str:
    """Return what a reader of results should know of a device."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"


def _describe_prompts(task: Task) -> dict[str, Any]:
    return {"count": len(task.prompts), "sha256": digest_of(task.prompts, task.chat_template)}
