"""Checks of what a plugin announces of itself: for installed plugins of all kinds."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

from specdec_core.border import PluginKind, PluginSpec
from specdec_core.registry import default_registry
from specdec_core.testing.checking import CheckFailure, check
from specdec_core.testing.subject import Subject

KINDS: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience")


def by_hand(subject: Subject) -> str | None:
    """Say why a check of the announcement does not apply."""
    return "it was given as a function, which announces nothing" if subject.spec is None else None


def announced_without_torch(subject: Subject) -> None:
    """Listing it and reading its settings import no torch, so that commands answer at once."""
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
            f"listed {record.entry_point!r} of {record.distribution} in a process of its own, and read the "
            f"settings of {spec.name!r}",
            done.stderr.strip() or "torch was imported",
            "neither torch nor an error",
            "The announced module and that of the settings are read for every command. Import torch, transformers "
            f"and the like in {spec.factory.partition(':')[0]!r} where it is another module, or within functions.",
        )


def announced_settings(subject: Subject) -> None:
    """The settings that it announces are those of its class, and every one of them is described."""
    spec = _spec(subject)
    did = f"compared the announcement of {spec.name!r} with {spec.factory}"
    module, _, attribute = spec.factory.partition(":")
    own = getattr(getattr(importlib.import_module(module), attribute), "Config", None)
    if own is not None and not issubclass(spec.config, own):
        hint = "`config` in the announcement and `Config` in the class are to be one model."
        raise CheckFailure(
            did, f"{spec.config.__name__} announced, Config = {own.__name__} in the class", "the same", hint
        )
    silent = [name for name, field in spec.config.model_fields.items() if not field.description]
    if silent:
        hint = "Put a docstring under each field: the schema and the help show it."
        raise CheckFailure(did, f"no description of {', '.join(silent)}", "a description of each setting", hint)
    if not spec.summary:
        raise CheckFailure(did, "no summary", "one line on what it does, for listings")


def _spec(subject: Any) -> PluginSpec:
    spec: PluginSpec = subject.spec
    return spec


for _kind in KINDS:
    check("announced-without-torch", kind=_kind, unless=by_hand)(announced_without_torch)
    check("announced-settings", kind=_kind, unless=by_hand)(announced_settings)
