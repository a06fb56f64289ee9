"""The tables of keys on the pages, from the pydantic models that read them.

A table stands between `<!-- keys: MODULE:MODEL -->` and `<!-- end of keys -->`; `python docs/renew.py` writes it.
`study` and `run` mean the models of a study with the plugins that come with specdec, `trainer:NAME` the options of
`specdec train NAME`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specdec_core.registry import PROJECT, Registry
from specdec_core.registry.flat import flat_settings
from specdec_core.study.config import run_model, study_model

PAGES = sorted(Path(__file__).parent.rglob("*.md"))
_PLACE = re.compile(r"(<!-- keys: (?P<what>\S+) -->\n).*?(<!-- end of keys -->)", re.DOTALL)
_KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "path": "path",
}
_BOUNDS = {
    "minimum": "at least {:g}",
    "exclusiveMinimum": "above {:g}",
    "maximum": "at most {:g}",
    "exclusiveMaximum": "below {:g}",
}


def renewed(text: str) -> str:
    """Return a page with its tables as the models have them."""
    return _PLACE.sub(lambda found: f"{found[1]}{_table_of(found['what'])}{found[3]}", text)


def _table_of(what: str) -> str:
    kind, _, name = what.partition(":")
    if kind != "trainer":
        return table(_model(what))
    model = _shipped().spec("trainer", name).config
    return table(model, {setting.name: " / ".join(setting.options) for setting in flat_settings(model)})


def table(model: type[BaseModel], options: Mapping[str, str] | None = None) -> str:
    """Return the keys of a model as a Markdown table; `options`: how they are written on a command line."""
    properties: Mapping[str, Any] = model.model_json_schema()["properties"]
    rows = [f"| {'option' if options else 'key'} | value | default | what it does |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _default(properties[name])
        about = " ".join((field.description or "").split()).replace("||", r"\|\|")
        for key, option in (options or {}).items():
            about = about.replace(f"`{key}`", f"`{option}`")
        written = (options or {}).get(name, name).replace(" / ", "`, `")
        rows.append(f"| `{written}` | {_value(properties[name])} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _shipped() -> Registry:
    """Return the plugins that come with specdec, whatever else is installed."""
    return Registry(
        [e for e in entry_points(group=PROJECT) if e.dist is not None and e.dist.name == "specdec-core"]
    )


def _model(what: str) -> type[BaseModel]:
    if what in ("study", "run"):
        return {"study": study_model, "run": run_model}[what](_shipped())
    module, _, name = what.partition(":")
    found: type[BaseModel] = getattr(importlib.import_module(module), name)
    return found


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if value in (None, [], {}) or isinstance(value, dict):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _value(schema: Mapping[str, Any]) -> str:
    """Return what may be written, in words."""
    options = [part for key in ("anyOf", "oneOf") for part in schema.get(key, ()) if part.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(_value(part) for part in options))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if not {"type", "$ref"} & schema.keys():
        return "plugin"  # its own settings are on its page
    kind = "path" if schema.get("format") == "path" else schema.get("type", "mapping")
    if len(schema.get("prefixItems", ())) == 2:
        return "pair"
    if kind == "array":
        return f"list of {_value(schema.get('items') or {})}s"
    bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
    return ", ".join([_KINDS.get(kind, "mapping"), *bounds])
