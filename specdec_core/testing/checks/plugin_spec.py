"""Checks of a plugin's `PluginSpec`, for installed plugins of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from specdec_core.interface import PluginSpec
from specdec_core.interface.spec import PluginKind
from specdec_core.registry import default_registry
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.subject import Subject

KINDS: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience", "rule")


def no_spec(subject: Subject) -> str | None:
    """Return why a check of the spec does not apply."""
    return "it was given as a function, which has no PluginSpec" if subject.spec is None else None


@check("spec-imports-no-torch", kind=KINDS, skip_if=no_spec, slow=True)
def spec_imports_no_torch(subject: Subject) -> None:
    """Listing it and reading its settings import no torch."""
    spec = _spec(subject)
    record = next(one for one in default_registry().records() if (one.kind, one.name) == (spec.kind, spec.name))
    code = (
        "import sys\nfrom specdec_core import default_registry\n"
        f"spec = default_registry().spec({spec.kind!r}, {spec.name!r})\n"
        "spec.config.model_json_schema()\n"
        "sys.exit('torch' in sys.modules)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    env = os.environ | {"PYTHONPATH": paths, "SPECDEC_PLUGINS": record.entry_point}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailure(
            f"listed {record.entry_point!r} of {record.distribution} in a new process, and read the settings of "
            f"{spec.name!r}",
            done.stderr.strip() or "torch was imported",
            "neither torch nor an error",
            "Every command imports the module of the entry point and that of the settings. Import torch, "
            f"transformers and the like in {spec.factory.partition(':')[0]!r} if that is another module, or "
            "inside functions.",
        )


@check("settings-described", kind=KINDS, skip_if=no_spec)
def settings_described(subject: Subject) -> None:
    """Its settings have a docstring, and each setting a description.

    Its settings have a docstring, whose first line is the summary, and each setting has a description.
    """
    spec = _spec(subject)
    did = f"read the docstrings of {spec.config.__name__}, the settings of {spec.name!r}"
    undescribed = [name for name, field in spec.config.model_fields.items() if not field.description]
    if undescribed:
        hint = "Put a docstring under each field. The schema and the help show it."
        raise CheckFailure(
            did, f"no description of {', '.join(undescribed)}", "a description of each setting", hint
        )
    if not spec.summary:
        raise CheckFailure(
            did,
            "no docstring of the class",
            "a docstring whose first line says what the plugin does, for listings",
        )


def _spec(subject: Any) -> PluginSpec:
    spec: PluginSpec = subject.spec
    return spec
