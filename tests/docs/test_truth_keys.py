"""Every key of a study, and every setting of a plugin that comes with specdec, stands on the site."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from specdec_core import PluginConfig
from specdec_core.registry import Registry
from specdec_core.registry.flat import flat_settings
from specdec_core.study import study_model
from tests.docs.test_truth_commands import plain

SHIPPED = Registry([e for e in entry_points(group="specdec") if e.dist and e.dist.name == "specdec-core"])
PLUGINS = [(kind, name) for kind in ("drafter", "gamma", "lenience", "trainer") for name in SHIPPED.names(kind)]


def models_below(annotation: Any, known: dict[type[BaseModel], None]) -> list[type[BaseModel]]:
    """The models in an annotation and in the fields of those, besides what is known."""
    parts = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in known:
            return []
        known[annotation] = None
        parts = [field.annotation for field in annotation.model_fields.values()]
    for part in parts:
        models_below(part, known)
    return list(known)


# A plugin's settings stand on its own page, and so does what they are made of.
MODELS = [
    model
    for model in models_below(study_model(SHIPPED), {})
    if model.__module__.startswith("specdec_core") and not issubclass(model, PluginConfig)
]


def tables(site, *pages: str) -> Iterator[tuple[str, dict[frozenset[str], list[str]]]]:
    """The tables of some pages, or of all: by the codes in the first cell of a row, the texts of the others."""
    for page, tree in site.pages.items():
        if not pages or page in pages:
            for table in tree.find("table"):
                rows = [[*row.find("td")] for row in table.find("tr")]
                yield (
                    page,
                    {
                        frozenset(code.text() for code in cells[0].find("code")): [c.text() for c in cells[1:]]
                        for cells in rows
                        if cells
                    },
                )


def written(model: type[BaseModel], as_options: bool) -> dict[frozenset[str], str]:
    """The fields of a model, by how they are written."""
    if as_options:
        return {frozenset(setting.options): setting.name for setting in flat_settings(model)}
    return {frozenset({name}): name for name in model.model_fields}


def faults(model: type[BaseModel], rows: dict[frozenset[str], list[str]], as_options: bool = False) -> list[str]:
    """What a table lacks of what a model says."""
    properties = model.model_json_schema()["properties"]
    found = []
    for key, name in written(model, as_options).items():
        field = model.model_fields[name]
        value, default, about = rows[key] if len(rows.get(key, ())) == 3 else ("", "", "")
        if not field.description or plain(field.description) not in plain(about):
            found.append(f"{name}: {field.description!r} does not stand there, but {about!r}")
        if default != default_of(field):
            found.append(f"{name}: the default is {default_of(field)}, not {default!r}")
        if not value or any(part not in value for part in limits(properties[name])):
            found.append(f"{name}: its value must be {limits(properties[name])}, not {value!r}")
    return found + [f"{set(key)} is no key" for key in rows.keys() - written(model, as_options).keys()]


def default_of(field: Any) -> str:
    """The default as a table has it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel) or value in (None, (), {}, []):
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def limits(schema: Any) -> list[str]:
    """The choices and bounds of a value that must be found in its cell."""
    found = [str(each) for each in schema.get("enum", ())]
    bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    found += [f"{schema[key]:g}" for key in bounds if key in schema]
    for part in schema.get("anyOf", ()):
        found += limits(part)
    return found


def test_the_models_are_found():
    names = {model.__name__ for model in MODELS}
    assert names >= {"Study", "TargetConfig", "InflateConfig", "PromptsConfig", "TaskConfig", "GenerationSettings"}
    assert len(PLUGINS) >= 20


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_key_of_a_study_stands_with_its_value_default_and_description(built_site, model):
    assert any(not faults(model, rows) for _, rows in tables(built_site)), fewest(model, tables(built_site))


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=str)
def test_every_setting_of_a_plugin_stands_on_its_page(built_site, kind, name):
    model = SHIPPED.spec(kind, name).config
    folder = "controllers" if kind in ("gamma", "lenience") else "drafters"
    page = f"{folder}/{name}.html"
    assert page in built_site.pages, f"there is no page {page}"
    if model.model_fields:
        options = kind == "trainer"
        there = [*tables(built_site, page)]
        assert any(not faults(model, rows, options) for _, rows in there), fewest(model, there, options)


def fewest(model, found, as_options=False) -> str:
    """What the table lacks that comes nearest."""
    lacks = min((faults(model, rows, as_options) for _, rows in found), key=len, default=["there is no table"])
    return f"{model.__name__}: {'; '.join(lacks)}"


def test_a_table_that_is_not_the_models_is_noticed():
    (model,) = [model for model in MODELS if model.__name__ == "GenerationSettings"]
    right = {
        frozenset({name}): [
            "whole number, at least 0, 1",
            default_of(field),
            str(field.description),
        ]
        for name, field in model.model_fields.items()
    }
    assert not faults(model, right)
    seed = frozenset({"seed"})
    for wrong in (["", "0"], ["whole number", "0"], ["whole number, at least 0", "1"]):
        assert len(faults(model, {**right, seed: [*wrong, str(model.model_fields["seed"].description)]})) == 1
    assert faults(model, {**right, seed: ["whole number, at least 0", "0", "The seed."]})
    assert faults(model, {key: row for key, row in right.items() if key != seed})
    assert faults(model, {**right, frozenset({"sed"}): right[seed]}) == ["{'sed'} is no key"]
