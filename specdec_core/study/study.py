"""A study that is ready to run: what is decoded, and in which ways. Importing this imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from specdec_core.registry import nested_settings

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.border import PluginConfig, PluginKind
    from specdec_core.registry import Registry
    from specdec_core.settings import GenerationSettings, SamplingSettings
    from specdec_core.study.config import PromptsConfig, StudyConfig, TargetConfig
    from specdec_core.study.prompts import PromptText

PLAIN = "plain"
"""Name of the baseline: the target alone, first of the runs of every task."""

Label: TypeAlias = str | int | float
"""What results call a controller: its name, or the number that a study gives in its place."""


def titled(task: str | None, text: str) -> str:
    """Return a text with a task's name before it, where it has one."""
    return text if task is None else f"{task}: {text}"


@dataclass(frozen=True)
class Run:
    """One way to decode the prompts.

    Attributes:
        name: Unique in its study.
        drafter: Settings of the drafter, its name included; None for plain decoding.
        gamma: Settings of the gamma controller; None for plain decoding.
        lenience: Settings of the lenience controller; None judges strictly.
        draft_sampling: The drafter's own sampling settings; None for those of the target.
        labels: What drafter, gamma and lenience are called in a table.
    """

    name: str
    drafter: PluginConfig | None = None
    gamma: PluginConfig | None = None
    lenience: PluginConfig | None = None
    draft_sampling: SamplingSettings | None = None
    labels: tuple[str | None, Label, Label] = (None, 0, 1.0)

    @property
    def lossless(self) -> bool:
        """Whether its lenience is 1 whatever happens, as far as the controller says."""
        return self.lenience is None or bool(getattr(self.lenience, "lossless", False))

    def resolved(self) -> dict[str, Any]:
        """Return all settings, defaults included, as plain data."""
        parts = {
            "drafter": self.drafter,
            "gamma": self.gamma,
            "lenience": self.lenience,
            "draft_sampling": self.draft_sampling,
        }
        settings = {key: part and part.model_dump(mode="json") for key, part in parts.items()}
        return {"name": self.name, **settings}


@dataclass(frozen=True)
class Task:
    """Something to decode, and in which ways.

    Attributes:
        name: Unique in its study; None where the study names no tasks, and is itself the only one.
        target: The model whose distribution is kept.
        prompts_config: Where the prompts come from.
        prompts: The prompts.
        chat_template: What writes chats out in the place of the tokenizer's own template; None for that.
        sampling: The target's settings.
        generation: How long, and from which seed.
        runs: What is compared, plain decoding first.
    """

    name: str | None
    target: TargetConfig
    prompts_config: PromptsConfig
    prompts: tuple[PromptText, ...]
    chat_template: str | None
    sampling: SamplingSettings
    generation: GenerationSettings
    runs: tuple[Run, ...]

    def titled(self, text: str) -> str:
        """Return a text with the task's name before it, where it has one."""
        return titled(self.name, text)

    def resolved(self) -> dict[str, Any]:
        """Return all settings but the runs, defaults included, as plain data."""
        parts = {
            "target": self.target,
            "prompts": self.prompts_config,
            "sampling": self.sampling,
            "generation": self.generation,
        }
        return {"task": self.name, **{key: part.model_dump(mode="json") for key, part in parts.items()}}


@dataclass(frozen=True)
class Study:
    """A comparison that is ready to run.

    Attributes:
        path: The file it was read from; relative paths are meant from its folder.
        config: What it says.
        runs: What is compared, plain decoding first, grids written out.
        tasks: What is decoded, grids written out; one without a name where the study names none.
    """

    path: Path
    config: StudyConfig
    runs: tuple[Run, ...]
    tasks: tuple[Task, ...]

    @property
    def folder(self) -> Path:
        """The folder that relative paths are meant from."""
        return self.path.parent

    def shared(self) -> dict[str, Any]:
        """Return the settings that all tasks share, defaults included, as plain data."""
        return self.config.model_dump(mode="json", include={"batch_size", "repeats", "lossless"})


def drafter_label(config: PluginConfig) -> str:
    """Return what a table calls a drafter: its name, and behind it those of the drafters it is made of."""
    inner = [drafter_label(one.config) for one in nested_settings(config) if one.marker.kind == "drafter"]
    name: str = cast("Any", config).name
    return f"{name}({', '.join(inner)})" if inner else name


def brief(registry: Registry, kind: PluginKind, config: PluginConfig) -> Label:
    """Return a controller's settings as a table shows them: its shorthand if that says all, else its name."""
    name: str = cast("Any", config).name
    field = registry.spec(kind, name).shorthand
    changed = config.model_dump(exclude_defaults=True, exclude={"name"})
    if field is None or set(changed) - {field}:
        return name
    value: Label = getattr(config, field)
    return value
