"""A study that is ready to run: read, expanded, validated, its prompts at hand. Imports no torch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import ValidationError

from specdec_core.errors import ConfigError, ModelError, PromptError
from specdec_core.registry import Registry, default_registry, nested_settings, unmet_needs
from specdec_core.shipped import BUILTIN_PREFIX, builtin_model
from specdec_core.study.config import RunConfig, StudyConfig, TargetConfig, study_model
from specdec_core.study.grid import Expanded, expand
from specdec_core.study.overrides import apply_overrides
from specdec_core.study.problems import describe
from specdec_core.study.prompts import PromptText, read_prompts
from specdec_core.study.source import Document, Keys, read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specdec_core.border import PluginConfig, PluginKind
    from specdec_core.settings import SamplingSettings

PLAIN = "plain"
"""Name of the baseline: the target alone, first of the runs of every study."""

Label: TypeAlias = str | int | float


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
class Study:
    """A comparison that is ready to run.

    Attributes:
        path: The file it was read from; relative paths are meant from its folder.
        config: What it says.
        runs: What is compared, plain decoding first, grids written out.
        prompts: The prompts.
    """

    path: Path
    config: StudyConfig
    runs: tuple[Run, ...]
    prompts: tuple[PromptText, ...]

    @property
    def folder(self) -> Path:
        """The folder that relative paths are meant from."""
        return self.path.parent

    def shared(self) -> dict[str, Any]:
        """Return the settings that all runs share, defaults included, as plain data."""
        return self.config.model_dump(mode="json", exclude={"runs"})


def load_study(path: Path, settings: Sequence[str] = (), registry: Registry | None = None) -> Study:
    """Read a study and check all that can be checked without loading a model.

    Args:
        path: A YAML file.
        settings: Texts `key=value` that replace values, as `--set` gives them.
        registry: The plugins that may be named; by default those installed.

    Raises:
        ConfigError: With one line for each problem, each beginning with file, line and column.
    """
    registry = registry or default_registry()
    document = read_document(path)
    apply_overrides(document, settings)
    expanded = expand(document)
    return _Assembly(document, expanded, registry).study(path)


class _Assembly:
    """Puts a study together and collects what is wrong with it, so that all is reported at once."""

    def __init__(self, document: Document, expanded: list[Expanded], registry: Registry) -> None:
        self._document = document
        self._expanded = expanded
        self._registry = registry
        self._problems: list[str] = []

    def study(self, path: Path) -> Study:
        config = self._validated(path.parent)
        runs = [self._run(run, origin) for run, origin in zip(config.runs, self._expanded, strict=True)]
        self._check_names([run.name for run in runs])
        self._check_target(config.target, path.parent)
        self._check_capabilities(config, runs, path.parent)
        self._check_lossless(config, runs)
        prompts = self._prompts(config, path.parent)
        if self._problems:
            raise ConfigError("\n".join(self._problems))
        return Study(path, config, (Run(PLAIN), *runs), prompts)

    def _where(self, path: Keys, key: bool = False) -> str:
        if len(path) > 1 and path[0] == "runs" and isinstance(path[1], int) and self._expanded:
            path = self._expanded[path[1]].written(path[2:])
        return self._document.where(path, key=key)

    def _validated(self, folder: Path) -> StudyConfig:
        model = study_model(self._registry)
        data = dict(self._document.data)
        if self._expanded:
            data["runs"] = [run.data for run in self._expanded]
        try:
            return model.model_validate(data, context={"folder": folder})
        except ValidationError as error:
            raise ConfigError("\n".join(describe(error, model, data, self._where, self._written))) from error

    def _written(self, path: Keys) -> Keys:
        """Return the keys of a setting with the number of its run as written, not as expanded."""
        if len(path) > 1 and path[0] == "runs" and isinstance(path[1], int) and self._expanded:
            return ("runs", self._expanded[path[1]].index, *path[2:])
        return path

    def _run(self, run: RunConfig, origin: Expanded) -> Run:
        gamma = brief(self._registry, "gamma", run.gamma)
        lenience = 1.0 if run.lenience is None else brief(self._registry, "lenience", run.lenience)
        drafter = drafter_label(run.drafter)
        name = run.name
        if name is None:
            name = f"{drafter}-{gamma}" + ("" if run.lenience is None else f"-lenience={lenience}")
            told = {("gamma",), ("lenience",), *_told_by_label(run.drafter, ("drafter",))}
            untold = {key: value for key, value in origin.choices.items() if origin.places[key] not in told}
            origin = Expanded(origin.data, origin.index, untold)
        labels = (drafter, gamma, lenience)
        return Run(name + origin.suffix, run.drafter, run.gamma, run.lenience, run.draft_sampling, labels)

    def _check_names(self, names: list[str]) -> None:
        for name, count in Counter(names).items():
            places = [place for place, other in enumerate(names) if other == name]
            if name == PLAIN:
                where = self._where(("runs", places[0], "name"))
                self._problems.append(f"{where}: the name {PLAIN!r} is taken by the baseline; choose another.")
            elif count > 1:
                where = self._where(("runs", places[1], "name"))
                self._problems.append(f"{where}: {count} runs are called {name!r}; give each a `name` of its own.")

    def _check_target(self, target: TargetConfig, folder: Path) -> None:
        where = self._where(("target", "model"))
        if target.model.startswith(BUILTIN_PREFIX):
            try:
                builtin_model(target.model)
            except ModelError as error:
                self._problems.append(f"{where}: {error}")
        elif target.model.startswith((".", "/", "~")) and not _model_folder(target.model, folder).is_dir():
            self._problems.append(f"{where}: there is no folder {_model_folder(target.model, folder)}.")

    def _check_capabilities(self, config: StudyConfig, runs: list[Run], folder: Path) -> None:
        encoder_decoder = _has_encoder(_model_folder(config.target.model, folder))
        for place, run in enumerate(runs):
            needs = unmet_needs(
                self._registry,
                cast("Any", run.drafter),
                encoder_decoder=encoder_decoder,
                batch_size=config.batch_size,
            )
            for keys, error in needs:
                self._problems.append(f"{self._where(('runs', place, 'drafter', *keys))}: {error}")

    def _check_lossless(self, config: StudyConfig, runs: list[Run]) -> None:
        if not config.lossless:
            return
        for place, run in enumerate(runs):
            if run.lenience is not None and not getattr(run.lenience, "lossless", False):
                where = self._where(("runs", place, "lenience"))
                self._problems.append(
                    f"{where}: the lenience of run {run.name!r} may be below 1, and the study says "
                    "`lossless: true`; leave it out, or say `lossless: false`."
                )

    def _prompts(self, config: StudyConfig, folder: Path) -> tuple[PromptText, ...]:
        try:
            return read_prompts(config.prompts, folder)
        except PromptError as error:
            self._problems.append(f"{self._where(('prompts', 'file'))}: {error}")
            return ()


def drafter_label(config: PluginConfig) -> str:
    """Return what a table calls a drafter: its name, and behind it those of the drafters it is made of."""
    inner = [drafter_label(one.config) for one in nested_settings(config) if one.marker.kind == "drafter"]
    name: str = cast("Any", config).name
    return f"{name}({', '.join(inner)})" if inner else name


def _told_by_label(config: PluginConfig, keys: Keys) -> Iterator[Keys]:
    """Yield the keys of the settings that a drafter's label shows."""
    yield keys
    for one in nested_settings(config):
        if one.marker.kind == "drafter":
            yield (*keys, one.keys[0])
            yield from _told_by_label(one.config, (*keys, *one.keys))


def brief(registry: Registry, kind: PluginKind, config: PluginConfig) -> Label:
    """Return a controller's settings as a table shows them: its shorthand if that says all, else its name."""
    name: str = cast("Any", config).name
    field = registry.spec(kind, name).shorthand
    changed = config.model_dump(exclude_defaults=True, exclude={"name"})
    if field is None or set(changed) - {field}:
        return name
    value: Label = getattr(config, field)
    return value


def _model_folder(model: str, folder: Path) -> Path:
    return folder / Path(model).expanduser()


def _has_encoder(folder: Path) -> bool | None:
    """Return whether a model folder says that it has an encoder; None where it does not say."""
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("is_encoder_decoder")
    except (OSError, ValueError, AttributeError):
        return None
    return said if isinstance(said, bool) else None
