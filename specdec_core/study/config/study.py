"""A study that is ready to run: its tasks and the runs that each task compares. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from specdec_core.costs.step_costs import settings_key
from specdec_core.interface import PluginConfig
from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.run import RunSettings
from specdec_core.interface.settings import BEAM_SETTINGS, GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.interface.spec import PluginKind
from specdec_core.registry.nesting import nested_settings
from specdec_core.registry.registry import Registry
from specdec_core.study.config.grouping import grouping_columns
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.schema import EngineConfig, PromptsConfig, RepeatsConfig, StudyConfig

BASELINE = "baseline"
"""Name of the autoregressive baseline: the target alone, the first run of every task."""

Label: TypeAlias = str | int | float
"""How results show a controller: its name, or the number that a study gives instead."""


def with_task(task: str | None, text: str) -> str:
    """Return a text prefixed with the name of its task, if the task has a name."""
    return text if task is None else f"{task}: {text}"


@dataclass(frozen=True)
class RunLabels:
    """How tables show the parts of a run; the defaults are those of the baseline.

    Attributes:
        drafter: Name of the drafter, with those of nested drafters in parentheses.
        gamma: Tokens drafted per step, or the controller's name.
        lenience: Factor l, or the controller's name.
        rule: The acceptance rule's name; None where none is set.
    """

    drafter: str | None = None
    gamma: Label = 0
    lenience: Label = 1.0
    rule: str | None = None


class Run(RunSettings):
    """One way to decode the prompts: the settings of a run, with a name.

    Attributes:
        name: Unique in its study.
        labels: How tables show the settings.
        engine: The server that decodes; None for the target here. Drafter and gamma, if given, say what it drafts
            with.
    """

    name: str
    labels: RunLabels = RunLabels()
    engine: EngineConfig | None = None

    def __hash__(self) -> int:
        """Hash the name: settings may hold mappings, which have no hash."""
        return hash(self.name)

    def resolved(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return all settings as plain data, by default including those that have their default."""
        parts = {
            "drafter": self.drafter,
            "gamma": self.gamma,
            "lenience": self.lenience,
            "draft_sampling": self.draft_sampling,
        }
        if self.rule is not None:  # results of runs without one stay as they were
            parts["rule"] = self.rule
        how: dict[str, Any] = {"mode": "json", "exclude_defaults": not defaults}
        settings = {key: part and part.model_dump(**how) for key, part in parts.items()}
        width = {} if self.draft_beams is None else {"draft_beams": self.draft_beams}
        engine = {} if self.engine is None else {"engine": self.engine.model_dump(mode="json")}
        return {"name": self.name, **settings, **width, **engine}


@dataclass(frozen=True)
class Task:
    """Prompts to decode with one target, and the runs to compare on them.

    Attributes:
        name: Unique in its study; None for the only task of a study without `tasks`.
        target: The model whose distribution is preserved.
        prompts_config: Where the prompts come from.
        prompts: The prompts.
        chat_template: Replaces the tokenizer's chat template; None uses the tokenizer's own.
        sampling: Sampling settings of the target.
        generation: Length limits and the seed.
        runs: The runs to compare, the baseline first.
        warmup_config: Where the warm-up prompts come from; None without any.
        warmup: What drafters that remember decode before the prompts of each repeat.
        counted: With `deploy`, the number of tokens that the server would decode; None where all count.
    """

    name: str | None
    target: TargetConfig
    prompts_config: PromptsConfig
    prompts: tuple[PromptText, ...]
    chat_template: str | None
    sampling: SamplingSettings
    generation: GenerationSettings
    runs: tuple[Run, ...]
    warmup_config: PromptsConfig | None = None
    warmup: tuple[PromptText, ...] = ()
    counted: int | None = None

    @property
    def served(self) -> bool:
        """Whether engines decode all runs, so that nothing is loaded here."""
        return all(run.engine is not None for run in self.runs)

    def with_task(self, text: str) -> str:
        """Return a text prefixed with the name of this task, if it has one."""
        return with_task(self.name, text)

    def resolved(self) -> dict[str, Any]:
        """Return all settings except the runs, including defaults, as plain data."""
        parts = {
            "target": self.target,
            "prompts": self.prompts_config,
            "sampling": self.sampling,
            "generation": self.generation,
        }
        plain = {key: part.model_dump(mode="json") for key, part in parts.items()}
        plain["prompts"]["group"] = list(grouping_columns(self.prompts_config)) or None
        if self.generation.beams == 1:  # results without beams stay as they were
            for name in ("beams", *BEAM_SETTINGS):
                del plain["generation"][name]
        if self.generation.constraint is None:  # results without it stay as they were
            del plain["generation"]["constraint"]
        if self.warmup_config is not None:
            plain["warmup_prompts"] = self.warmup_config.model_dump(mode="json")
        return {"task": self.name, **plain}


@dataclass(frozen=True)
class Study:
    """A benchmark of drafters that is ready to run.

    Attributes:
        path: The file it was read from.
        config: The validated settings.
        runs: The runs to compare, the baseline first, with grids expanded.
        tasks: The tasks, with grids expanded; a single unnamed one if the study has no `tasks`.
        left_out: With `deploy`, a line for each run that the server cannot decode, with the reason.
    """

    path: Path
    config: StudyConfig
    runs: tuple[Run, ...]
    tasks: tuple[Task, ...]
    left_out: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Base for relative paths: the folder of the study file."""
        return self.path.parent

    def shared(self) -> dict[str, Any]:
        """Return the settings shared by all tasks, including defaults, as plain data."""
        plain = self.config.model_dump(mode="json", include={"batch_size", "repeats", "lossless"})
        plain |= {} if self.config.deploy is None else {"deploy": self.config.deploy}
        return plain if self.config.timing else {**plain, "repeats": 1, "timing": False}

    def chosen(self, names: Sequence[str], option: str = "--task") -> tuple[Task, ...]:
        """Return the tasks with some names; all of them without names.

        Args:
            names: Their names.
            option: What names them, for messages.

        Raises:
            ConfigError: The task does not exist.
        """
        known = [task.name for task in self.tasks if task.name is not None]
        for name in names:
            if name not in known:
                why = unknown_name("task", name, known) if known else "the study has no `tasks`."
                raise ConfigError(f"{option}: {why}")
        return tuple(task for task in self.tasks if not names or task.name in names)

    @property
    def repeats(self) -> RepeatsConfig:
        """How often each run decodes."""
        return self.config.repeats if self.config.timing else self.config.repeats.once()


def drafter_label(config: PluginConfig) -> str:
    """Return the name of a drafter, with the names of nested drafters in parentheses."""
    inner = [drafter_label(one.config) for one in nested_settings(config) if one.marker.kind == "drafter"]
    name: str = cast("Any", config).name
    return f"{name}({', '.join(inner)})" if inner else name


def drafter_key(drafter: PluginConfig | None, draft_sampling: SamplingSettings | None) -> str:
    """Return what tells a drafter from others: its settings, and those of its sampling."""
    own = {} if drafter is None else drafter.model_dump(mode="json")
    return settings_key(own, None if draft_sampling is None else draft_sampling.model_dump(mode="json"))


def controller_label(registry: Registry, kind: PluginKind, config: PluginConfig) -> Label:
    """Return the shorthand value of a controller if it says everything, and its name otherwise."""
    name: str = cast("Any", config).name
    field = registry.spec(kind, name).shorthand
    changed = config.model_dump(exclude_defaults=True, exclude={"name"})
    if field is None or set(changed) - {field}:
        return name
    value: Label = getattr(config, field)
    return value
