"""The settings of a study as pydantic models, with those of the installed plugins. Imports no torch."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)

from specdec_core.interface.constraint import Constraint
from specdec_core.interface.errors import shortened
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.interface.validated import Validated
from specdec_core.registry.registry import Registry
from specdec_core.registry.settings_models import NO_SOURCE, plugin_types
from specdec_core.study.config.benchmarks import BENCHMARKS, check_benchmark, names_prompt, spelled_out
from specdec_core.study.config.prompt_rows import Columns, check_template


class ColumnsConfig(Validated):
    """Columns of a file or dataset, or keys of its JSON objects. Only those that are named are read."""

    prompt: str | None = None
    """The text, or a list of texts, which are a user's turns. Same as `column`."""
    messages: str | None = None
    """The messages of a chat, instead of a text."""
    reference: str | None = None
    """A reference output, or a list of them, to score outputs against."""
    id: str | None = None
    """The prompt's name in results; by default its row number."""
    source: str | None = None
    """Origin of the prompt; only shown."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("this prompt is empty; write a text or remove it")
    return text


_TokenId = Annotated[int, Field(ge=0)]


def _as_tuple(value: Any) -> Any:
    """Return a column as a tuple of one, and a list as a tuple, which is all that strict validation takes."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


_Groups = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1, max_length=2),
    BeforeValidator(_as_tuple, json_schema_input_type=str | list[str]),
]
"""A column, or two."""


class PromptsConfig(Validated):
    """Source of the prompts: exactly one of `builtin`, `file`, `dataset`, `benchmark`, `texts` and `tokens`."""

    builtin: Annotated[str, Field(min_length=1)] | None = None
    """Prompts held out from the built-in models' training: `heldout`, `translation` or `summarization`."""
    file: Path | None = None
    """A .jsonl, .json, .csv, .tsv, .parquet or .txt file; or one of a package, such as `builtin:heldout`."""
    dataset: Annotated[str, Field(min_length=1)] | None = None
    """A Hugging Face dataset: a folder or a hub name."""
    benchmark: (
        Annotated[str, AfterValidator(check_benchmark), Field(json_schema_extra={"enum": [*BENCHMARKS]})] | None
    ) = None
    """A benchmark, with its columns, template and chat."""
    texts: tuple[Annotated[str, AfterValidator(_not_blank)], ...] | None = None
    """The prompts themselves; a bare list is short for this."""
    tokens: tuple[Annotated[tuple[_TokenId, ...], Field(min_length=1)], ...] | None = None
    """The prompts as lists of the target's token ids, to which nothing is added."""
    path: Path | None = None
    """Local copy of the benchmark; by default the one on the hub."""
    config: str | None = None
    """Configuration of the dataset or benchmark, if it has several."""
    split: str | None = None
    """Split, such as `test` or `train[:100]`."""
    revision: str | None = None
    """Branch, tag or commit of a dataset on the hub."""
    column: str | None = None
    """Column, or JSON key, of the prompt; by default `prompt`, `messages`, `turns` or `conversations`. A dot
    reaches into objects and lists: `turns.0`."""
    template: Annotated[str, AfterValidator(check_template)] | None = None
    """The prompt with columns in braces, such as `"Question: {question}\\nAnswer:"`."""
    columns: ColumnsConfig | None = None
    """Columns of the reference, the id and so on."""
    group: _Groups | None = None
    """One or two columns by whose values results are also reported."""
    chat: bool | None = None
    """Treat each text as a user message; benchmarks do."""
    system: Annotated[str, Field(min_length=1)] | None = None
    """System message; requires `chat`."""
    turns: Literal["all", "first"] = "all"
    """Turns of a conversation to decode: `all` or the `first`."""
    shuffle: Annotated[int, Field(ge=0)] | None = None
    """Seed of a random order."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """The most prompts to use."""
    chat_template: Path | None = None
    """A Jinja file that replaces the tokenizer's chat template."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = ("builtin", "file", "dataset", "benchmark", "texts", "tokens")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(map(repr, given)) or "none of them"
            raise ValueError(
                f"set exactly one of {', '.join(map(repr, sources[:-1]))} and 'tokens'; given {found}"
            )
        for keys, owners in _OF_SOURCES.items():
            for key in keys:
                if getattr(self, key) is not None and given[0] not in owners:
                    raise ValueError(f"{key!r} requires {' or '.join(map(repr, owners))}; given {given[0]!r}")
        for key in ("split", "revision"):
            if self.path is not None and getattr(self, key) is not None:
                raise ValueError(f"{key!r} is of the hub, and 'path' is a local copy; let 'path' name the file")
        held = self.columns or ColumnsConfig()
        prompts = {"column": self.column, "template": self.template, "columns.prompt": held.prompt}
        prompts["columns.messages"] = held.messages
        named = [name for name, value in prompts.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(map(repr, named))} are given; the prompt comes from one of them")
        if self.columns is not None and not named and not names_prompt(self.benchmark):
            raise ValueError("'columns' names no prompt; add 'column' or 'template'")
        if self.chat and self.tokens is not None:
            raise ValueError("'chat' requires texts, which become messages of users; 'tokens' holds token ids")
        if self.system is not None and not self.chat and (self.benchmark is None or self.chat is False):
            raise ValueError("'system' requires 'chat: true', which treats each text as a user message")
        return self

    def spelled_out(self, folder: Path) -> "PromptsConfig":
        """Return the settings that a benchmark stands for; those of other sources as they are.

        Args:
            folder: Base for relative paths.

        Raises:
            PromptError: The benchmark has no file.
        """
        if self.benchmark is None:
            return self
        stated = self.model_dump(exclude_none=True, exclude={"benchmark", "path"})
        return PromptsConfig(**spelled_out(self.benchmark, stated, self.path, folder))

    def chosen_columns(self) -> Columns:
        """Return what to read of each row."""
        held = {} if self.columns is None else self.columns.model_dump(exclude_none=True)
        names = held if self.column is None else {**held, "prompt": self.column}
        return Columns(names, self.template, self.group or ())


_OF_SOURCES = {
    ("config", "split", "revision"): ("dataset", "benchmark"),
    ("column", "template", "columns"): ("file", "dataset", "benchmark"),
    ("group",): ("builtin", "file", "dataset", "benchmark"),
    ("path",): ("benchmark",),
}
"""Keys that only some sources have."""


class RepeatsConfig(Validated):
    """How often each run is timed: until every speed-up is known well enough."""

    min: Annotated[int, Field(ge=1)] = 3
    """Time each run at least this often."""
    max: Annotated[int, Field(ge=1)] = 10
    """Time each run at most this often."""
    spread: Annotated[float, Field(gt=0)] = 0.05
    """Stop when half the interval of every run's speed-up is at most this fraction of it."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"'max' ({self.max}) is less than 'min' ({self.min})")
        return self

    def once(self) -> Self:
        """Return the settings of a single repeat."""
        return self.model_copy(update={"min": 1, "max": 1})

    @model_serializer(mode="wrap")
    def _short(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any] | int:
        plain: dict[str, Any] = serialize(self)
        return self.min if self.min == self.max else plain


def _spell_out_repeats(value: Any) -> Any:
    """Expand a number of repeats, or `auto`, to a mapping."""
    if isinstance(value, (Mapping, RepeatsConfig)):
        return value
    if value == "auto":
        return {}
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"expected a number of at least 1, 'auto', or a mapping of min, max, spread; given {value!r}."
        )
    return {"min": value, "max": value}


AnyRepeats = Annotated[
    RepeatsConfig,
    BeforeValidator(
        _spell_out_repeats,
        json_schema_input_type=Annotated[int, Field(ge=1)] | Literal["auto"] | RepeatsConfig,
    ),
]
"""Repeats: a mapping, a fixed number, or `auto`."""


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError(f"expected the address of a server, such as http://127.0.0.1:8000/v1; given {url!r}")
    return url


class EngineConfig(Validated):
    """A running server with OpenAI's API: vLLM, SGLang, llama.cpp, `transformers serve`."""

    url: Annotated[str, AfterValidator(_check_url)]
    """Address of its API, such as `http://127.0.0.1:8000/v1`. The variable OPENAI_API_KEY holds its key, if
    it has one."""
    model: Annotated[str, Field(min_length=1)]
    """The model as the server names it."""
    concurrency: Annotated[int, Field(ge=1)] = 1
    """Number of requests that are sent at a time."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds to wait for one answer."""
    max_retries: Annotated[int, Field(ge=0)] = 2
    """How often a request is sent again, after a growing pause, if the server is away or too busy."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More fields of each request, such as `{chat_template_kwargs: {enable_thinking: false}}`."""

    def decides(self) -> dict[str, Any]:
        """Return the settings that may change a result, as plain data: not where and how the server is reached."""
        return self.model_dump(mode="json", exclude={"url", "timeout", "max_retries"})

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return urlsplit(self.url).netloc


AnyTarget = Annotated[
    TargetConfig,
    BeforeValidator(
        lambda v: {"model": v} if isinstance(v, str) else v, json_schema_input_type=TargetConfig | str
    ),
]
"""A target: a mapping, or only the model."""


def _spell_out_prompts(value: Any) -> Any:
    """Expand a list of texts to a mapping; a single text may be meant as a file or as a prompt."""
    if isinstance(value, str):
        given = shortened(value, 60)
        raise ValueError(f"write {{file: {given}}} for a file, or [{given!r}] for a prompt; given {given!r}.")
    return {"texts": value} if isinstance(value, list) else value


AnyPrompts = Annotated[
    PromptsConfig,
    BeforeValidator(
        _spell_out_prompts,
        json_schema_input_type=PromptsConfig | list[str],
    ),
]
"""Prompts: a mapping, or only a list of texts."""


def _without_constraint(settings: GenerationSettings) -> GenerationSettings:
    if settings.constraint is not None:
        raise ValueError("in a study, 'constraint' stands beside 'generation', not in it; move it")
    return settings


_Generation = Annotated[GenerationSettings, AfterValidator(_without_constraint)]
_Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]


class TaskConfig(Validated):
    """Prompts to decode, with their own baseline; settings here override those of the study."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Name of the task in tables and results."""
    target: AnyTarget | None = None
    """By default the study's."""
    prompts: AnyPrompts | None = None
    """By default the study's."""
    warmup_prompts: AnyPrompts | None = None
    """By default the study's."""
    sampling: SamplingSettings | None = None
    """Settings that differ from the study's."""
    generation: _Generation | None = None
    """Settings that differ from the study's."""
    constraint: Constraint | None = None
    """By default the study's; null is none."""
    grid: _Grid = Field(default_factory=dict)
    """Dotted keys with lists of values. Every combination becomes a task."""


class RunConfig(Validated):
    """One way to decode the prompts: a drafter with its gamma and lenience. The baseline is always added."""

    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Name in tables and results; by default made from drafter and gamma."""
    drafter: Any = None
    """The drafter: a name, or a mapping with `name` and settings."""
    gamma: Any = None
    """Tokens drafted per step."""
    engine: EngineConfig | None = None
    """A server that decodes the prompts instead."""
    lenience: Any = None
    """Lenience l in (0, 1]; by default 1, which is lossless."""
    rule: Any = None
    """The acceptance rule; by default `token`, Algorithm 1."""
    draft_beams: Annotated[int, Field(ge=1)] | None = None
    """With `generation.beams`: nodes in each of the draft's gamma levels; by default as many as beams."""
    draft_sampling: SamplingSettings | None = None
    """Sampling settings of the drafter (section 6); by default the target's."""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names of its tasks, `*` for any text; by default all."""
    grid: _Grid = Field(default_factory=dict)
    """Dotted keys with lists of values. Every combination becomes a run."""


class BaselineConfig(Validated):
    """How the baseline decodes."""

    engine: EngineConfig
    """A server that decodes the prompts without drafts."""


class StudyConfig(Validated):
    """A study: a benchmark of drafters that `specdec compare` runs."""

    target: AnyTarget | None = None
    """The target: a mapping, or only the model."""
    prompts: AnyPrompts | None = None
    """The prompts: a mapping, or a list of texts."""
    warmup_prompts: AnyPrompts | None = None
    """Other prompts that drafters with a memory decode first in each repeat, unmeasured."""
    sampling: SamplingSettings = SamplingSettings()
    """Sampling settings of the target."""
    generation: _Generation = GenerationSettings()
    """Length limits and the seed."""
    constraint: Constraint | None = None
    """A JSON schema, regular expression or grammar for the new texts. Needs llguidance."""
    batch_size: Annotated[int, Field(ge=1)] = 1
    """Number of prompts to decode together."""
    auto_find_batch_size: bool = False
    """Decode a batch in halves where memory is short, instead of failing the run."""
    repeats: AnyRepeats = RepeatsConfig(min=3, max=3)
    """How often each run is timed; `auto` is the mapping with its defaults."""
    timing: bool = True
    """`false` measures acceptance alone, and decodes each run once."""
    deploy: Literal["vllm"] | None = None
    """Decode by vLLM's rules, and end with the command that serves the best drafter there."""
    lossless: bool = False
    """Reject runs whose lenience may be below 1, and lossy acceptance rules."""
    baseline: BaselineConfig | None = None
    """A server that decodes the baseline; by default the target does."""
    tasks: Annotated[tuple[TaskConfig, ...], Field(min_length=1)] | None = None
    """Tasks, each with its own baseline and table."""
    runs: Annotated[tuple[Any, ...], Field(min_length=1)]
    """The runs to compare with plain decoding."""


@lru_cache(maxsize=8)
def study_model(registry: Registry, *, runs_needed: bool = True) -> type[StudyConfig]:
    """Return the model of a study that may name exactly the plugins of the registry.

    Args:
        registry: The plugins.
        runs_needed: Whether it must have runs.
    """
    run = run_model(registry)
    # Made at run time, beyond the reach of a type checker.
    runs: Any = Annotated[
        tuple[run, ...],  # type: ignore[valid-type]
        Field(min_length=int(runs_needed), description="The runs to compare with plain decoding."),
    ]
    default: Any = ... if runs_needed else ()
    return create_model("Study", __base__=StudyConfig, __cls_kwargs__=NO_SOURCE, runs=(runs, default))


@lru_cache(maxsize=8)
def run_model(registry: Registry) -> type[RunConfig]:
    """Return the model of a run that may name exactly the plugins of the registry."""
    kinds = ("drafter", "gamma", "lenience", "rule")
    named: Any = {
        kind: (type_ | None, RunConfig.model_fields[kind])
        for kind, type_ in zip(kinds, plugin_types(registry), strict=True)
    }
    return create_model("Run", __base__=RunConfig, __cls_kwargs__=NO_SOURCE, **named)


def study_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON schema of a study, for editors."""
    schema = study_model(registry).model_json_schema()
    run = schema["$defs"]["Run"]
    # Required keys may come from the grid.
    run["anyOf"] = [{"required": keys} for keys in (["drafter", "gamma"], ["engine"], ["grid"])]
    # Target and prompts may be set by every task instead.
    schema["anyOf"] = [{"required": ["target", "prompts"]}, {"required": ["tasks"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "specdec study"}
