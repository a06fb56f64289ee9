"""What a study may say, as pydantic models; the plugins' part is put together from what is installed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from specdec_core.border import Nested
from specdec_core.errors import PluginError
from specdec_core.registry import MOST_DEEP, WORD_FOR_KIND, depth_of, marker_of
from specdec_core.settings import GenerationSettings, ModelSettings, SamplingSettings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from specdec_core.border import PluginConfig, PluginKind, PluginSpec
    from specdec_core.registry import Registry

_KINDS: tuple[PluginKind, ...] = ("drafter", "gamma", "lenience")
"""What a study may name."""
_REFERENCE = "specdec_any_{}"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class InflateConfig(_Part):
    """Layers added to the target that change its cost and nothing else: the c of a large model without one."""

    layers: Annotated[int, Field(ge=1)]
    """How many layers to add; their output projections are zero."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Size of their feed-forward parts; that of the model when left out."""
    encoder_width: Annotated[int, Field(ge=1)] | None = None
    """The same for the layers of an encoder, where `width` would make reading the source too dear."""


class TargetConfig(ModelSettings):
    """The model whose distribution is kept, how it is loaded, and whether it is made larger."""

    inflate: InflateConfig | None = None
    """Make it cost more, for studies of speed; its distribution stays as it is."""


class PromptsConfig(_Part):
    """Where the prompts come from: exactly one of `builtin`, `file` and `texts`."""

    builtin: Literal["heldout", "translation", "summarization"] | None = None
    """Prompts that ship with the built-in models, from text they were not trained on."""
    file: Path | None = None
    """A JSONL file, one object with a `prompt` or with chat `messages` a line; relative to the study."""
    texts: tuple[str, ...] | None = None
    """The prompts themselves. A bare list means this."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Use only the first so many."""
    chat_template: Path | None = None
    """A Jinja file that writes chats out, in the place of the tokenizer's own template; relative to the study."""

    @model_validator(mode="after")
    def _check_one(self) -> PromptsConfig:
        given = [name for name in ("builtin", "file", "texts") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(repr(name) for name in given) or "none of them"
            raise ValueError(f"give exactly one of 'builtin', 'file' and 'texts'; {said} was given")
        return self


_Target = Annotated[
    TargetConfig,
    BeforeValidator(
        lambda v: {"model": v} if isinstance(v, str) else v, json_schema_input_type=TargetConfig | str
    ),
]
"""A target: a mapping, or just the model."""
_Prompts = Annotated[
    PromptsConfig,
    BeforeValidator(
        lambda v: {"texts": v} if isinstance(v, list) else v,
        json_schema_input_type=PromptsConfig | list[str],
    ),
]
"""Prompts: a mapping, or just a list of texts."""
_Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


class TaskConfig(_Part):
    """Something to decode, with a baseline of its own: what it says replaces what the study says."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """What tables and results call it."""
    target: _Target | None = None
    """Another target than the study's."""
    prompts: _Prompts | None = None
    """Other prompts than the study's."""
    sampling: SamplingSettings | None = None
    """Sampling settings that differ from the study's; what is left out stays as it is there."""
    generation: GenerationSettings | None = None
    """Settings of the generation that differ from the study's; what is left out stays as it is there."""
    grid: _Grid = Field(default_factory=dict)
    """Settings to vary: a dotted key of this task, and its values. Every combination becomes a task."""


class RunConfig(_Part):
    """One way to decode the prompts: a drafter, its gamma and lenience. Plain decoding runs beside it."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Name of the run in tables and results; made from drafter and gamma when left out."""
    drafter: Any
    """Who guesses tokens: the settings of an installed drafter."""
    gamma: Any
    """How many tokens are drafted in a step: the settings of a controller."""
    lenience: Any = None
    """How lenient the comparison is: the settings of a controller; left out, it is strict."""
    draft_sampling: SamplingSettings | None = None
    """The drafter's own sampling settings (section 6); left out, those of the target."""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The tasks it takes part in, by name; `*` stands for any text. All of them when left out."""
    grid: _Grid = Field(default_factory=dict)
    """Settings to vary: a dotted key of this run, and its values. Every combination becomes a run."""


class StudyConfig(_Part):
    """A comparison of drafters on one target: what `specdec compare` runs."""

    target: _Target | None = None
    """The target: a mapping, or just the model. May be left out where every task names one."""
    prompts: _Prompts | None = None
    """The prompts: a mapping, or just a list of texts. May be left out where every task has its own."""
    sampling: SamplingSettings = SamplingSettings()
    """How the target's logits become the distribution that is sampled."""
    generation: GenerationSettings = GenerationSettings()
    """How long to decode and from which seed."""
    batch_size: Annotated[int, Field(ge=1)] = 1
    """How many prompts are decoded together."""
    repeats: Annotated[int, Field(ge=1)] = 3
    """How often every run is timed; runs take turns, so that a drifting machine favours none."""
    lossless: bool = False
    """Refuse runs whose lenience may be below 1, so that every run writes the target's distribution."""
    tasks: Annotated[tuple[TaskConfig, ...], Field(min_length=1)] | None = None
    """What is decoded, where that is more than one thing: each task has a baseline and a table of its own."""
    runs: Annotated[tuple[Any, ...], Field(min_length=1)]
    """What is compared with plain decoding."""


def study_model(registry: Registry) -> type[StudyConfig]:
    """Return the model of a study in which exactly the plugins of the registry may be named."""
    run = run_model(registry)
    # Made at run time, so out of the reach of a type checker.
    runs: Any = Annotated[
        tuple[run, ...],  # type: ignore[valid-type]
        Field(min_length=1, description="What is compared with plain decoding."),
    ]
    return create_model("Study", __base__=StudyConfig, runs=(runs, ...))


def run_model(registry: Registry) -> type[RunConfig]:
    """Return the model of a run in which exactly the plugins of the registry may be named."""
    drafter = Field(description="Who guesses tokens: a name, or a mapping with `name` and settings.")
    gamma = Field(description="How many tokens are drafted in a step: a number, a name, or a mapping.")
    lenience = Field(
        None, description="How strictly drafts are judged, 1 is lossless: a number, a name, or a mapping."
    )
    any_drafter, any_gamma, any_lenience = _plugin_types(registry)
    return create_model(
        "Run",
        __base__=RunConfig,
        drafter=(any_drafter, drafter),
        gamma=(any_gamma, gamma),
        lenience=(any_lenience | None, lenience),
    )


def study_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON schema of a study, for editors."""
    schema = study_model(registry).model_json_schema()
    run = schema["$defs"]["Run"]
    # What a grid chooses need not be written beside it.
    run["anyOf"] = [{"required": run.pop("required")}, {"required": ["grid"]}]
    # What every task says need not be said of the study.
    schema["anyOf"] = [{"required": ["target", "prompts"]}, {"required": ["tasks"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "specdec study"}


def _plugin_types(registry: Registry) -> list[Any]:
    """Return the annotations of fields that name a plugin, one for each of `_KINDS`.

    Plugins may hold plugins in their settings, themselves included, so their models refer to these annotations by
    name until all are there.
    """
    models = {kind: [_with_name(spec) for spec in registry.specs(kind)] for kind in _KINDS}
    types = [_plugin_type(kind, models[kind], registry) for kind in _KINDS]
    namespace = {_REFERENCE.format(kind): type_ for kind, type_ in zip(_KINDS, types, strict=True)}
    for model in itertools.chain.from_iterable(models.values()):
        model.model_rebuild(_types_namespace=namespace)
    return types


def _plugin_type(kind: PluginKind, models: Sequence[type[PluginConfig]], registry: Registry) -> Any:
    """Return the annotation of a field that names a plugin: a union discriminated by `name`."""
    chosen: Any = Any
    if len(models) == 1:
        chosen = models[0]
    elif models:
        chosen = Annotated[Union[tuple(models)], Field(discriminator="name")]  # noqa: UP007  (made at run time)
    written = chosen
    if models:
        bare = Literal[tuple(registry.names(kind))]  # type: ignore[valid-type]
        written = chosen | bare | float if registry.shorthand(kind) else chosen | bare
    return Annotated[chosen, BeforeValidator(partial(_spell_out, kind, registry), json_schema_input_type=written)]


def _with_name(spec: PluginSpec) -> type[PluginConfig]:
    """Return the model of a plugin's settings with its name, and with real plugins where they are nested."""
    title = "".join(part.capitalize() for part in f"{spec.name}-{spec.kind}".replace("_", "-").split("-"))
    name: Any = Literal[spec.name]
    described = Field(description=spec.summary or f"The {spec.kind} {spec.name!r}.")
    nested = {key: _filled_in(field) for key, field in spec.config.model_fields.items() if _holds_plugin(field)}
    return create_model(
        title, __base__=spec.config, __doc__=spec.summary or None, name=(name, described), **nested
    )


def _holds_plugin(field: FieldInfo) -> bool:
    return marker_of(_annotation(field)) is not None


def _annotation(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _filled_in(field: FieldInfo) -> Any:
    """Return the definition of a field in which every marker is replaced by what is installed."""
    said = field.asdict()["attributes"]
    settings = {key: value for key, value in said.items() if value is not None or key == "default"}
    # A default is written as a study would write it, and read like that.
    return _with_references(_annotation(field)), Field(**{**settings, "validate_default": True})


def _with_references(annotation: Any) -> Any:
    """Return an annotation with a reference wherever a marker stands; see `_plugin_types`."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kinds = [extra.kind for extra in parts[1:] if isinstance(extra, Nested) and extra.kind in _KINDS]
        inner = ForwardRef(_REFERENCE.format(kinds[0])) if kinds else _with_references(parts[0])
        return Annotated[inner, *parts[1:]]
    replaced = tuple(map(_with_references, parts))
    if replaced == parts:
        return annotation
    return Union[replaced] if origin is UnionType else origin[replaced]  # noqa: UP007  (made at run time)


def _spell_out(kind: PluginKind, registry: Registry, value: Any) -> Any:
    """Turn a bare name or number into the mapping it stands for, and refuse names that are not there."""
    word = WORD_FOR_KIND[kind]
    try:
        if isinstance(value, str):
            value = {"name": value}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            spec = registry.shorthand(kind)
            if spec is None:
                raise PluginError(f"a bare number says nothing for a {word} here; write {{name: ...}} instead.")
            value = {"name": spec.name, spec.shorthand: value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            names = ", ".join(registry.names(kind)) or "none"
            raise PluginError(f"a {word} is given by its name, or a mapping with 'name'. Available: {names}.")
        registry.spec(kind, value["name"])
        if depth_of(value) > MOST_DEEP:
            raise PluginError(f"over {MOST_DEEP} plugins are nested in one another here; {MOST_DEEP} are allowed.")
    except PluginError as error:
        raise PydanticCustomError("plugin", "{reason}", {"reason": str(error)}) from error
    return value
