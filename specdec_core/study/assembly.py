"""Putting a study together: reading, expanding, checking all that can be checked before a model is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from specdec_core.errors import ConfigError, ModelError, PromptError, unknown_name
from specdec_core.model_folder import has_encoder, model_folder
from specdec_core.registry import Registry, default_registry, nested_settings, unmet_needs
from specdec_core.study.config import RunConfig, StudyConfig, TargetConfig, TaskConfig, study_model
from specdec_core.study.grid import Expanded, expand
from specdec_core.study.overrides import apply_overrides
from specdec_core.study.problems import describe
from specdec_core.study.prompts import PromptText, read_chat_template, read_prompts
from specdec_core.study.source import Document, Keys, dotted, read_document
from specdec_core.study.study import PLAIN, Run, Study, Task, brief, drafter_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from specdec_core.border import PluginConfig
    from specdec_core.study.config import PromptsConfig


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
    return _Assembly(document, registry, path).study()


_NOTHING_SAID = TaskConfig(name="the study")
"""What a study that names no tasks says of the only one."""


class _Assembly:
    """Puts a study together and collects what is wrong with it, so that all is reported at once."""

    def __init__(self, document: Document, registry: Registry, path: Path) -> None:
        self._document = document
        self._registry = registry
        self._path = path
        self._folder = path.parent
        self._expanded = {section: expand(document, section) for section in ("tasks", "runs")}
        self._problems: list[str] = []

    def study(self) -> Study:
        config = self._validated()
        runs = [self._run(run, origin) for run, origin in zip(config.runs, self._expanded["runs"], strict=True)]
        self._check_names("runs", [run.name for run in runs])
        tasks = self._tasks(config, runs)
        self._check_capabilities(config, runs, tasks)
        self._check_lossless(config, runs)
        if self._problems:
            raise ConfigError("\n".join(dict.fromkeys(self._problems)))
        return Study(self._path, config, (Run(PLAIN), *runs), tuple(tasks))

    def _where(self, path: Keys, key: bool = False) -> str:
        origin = self._origin(path)
        return self._document.where(path if origin is None else origin.written(path[2:]), key=key)

    def _written(self, path: Keys) -> Keys:
        """Return the keys of a setting with the number of its entry as written, not as expanded."""
        origin = self._origin(path)
        return path if origin is None else (origin.section, origin.index, *path[2:])

    def _origin(self, path: Keys) -> Expanded | None:
        """Return the entry that a setting stands in, where its list may have grids."""
        if len(path) < 2 or not isinstance(path[1], int):
            return None
        expanded = self._expanded.get(str(path[0]))
        return expanded[path[1]] if expanded else None

    def _note(self, path: Keys, problem: object) -> None:
        self._problems.append(f"{self._where(path)}: {problem}")

    def _validated(self) -> StudyConfig:
        model = study_model(self._registry)
        data = dict(self._document.data)
        data |= {
            section: [one.data for one in expanded] for section, expanded in self._expanded.items() if expanded
        }
        missing = list(self._missing(data))
        try:
            config = model.model_validate(data, context={"folder": self._folder})
        except ValidationError as error:
            wrong = describe(error, model, data, self._where, self._written)
            raise ConfigError("\n".join([*missing, *wrong])) from error
        if missing:
            raise ConfigError("\n".join(missing))
        return config

    def _missing(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Yield what a task lacks: it is said of the task, or of the study."""
        tasks = data.get("tasks")
        places: list[Keys] = [("tasks", place) for place in range(len(tasks))] if isinstance(tasks, list) else [()]
        for key in ("target", "prompts"):
            for path in places if data.get(key) is None else ():
                entry = data["tasks"][path[1]] if path else data
                if isinstance(entry, Mapping) and entry.get(key) is None:
                    inside = f"{dotted(self._written(path))}: " if path else ""
                    other = "; give it here, or to the whole study" if path else ""
                    yield f"{self._where(path)}: {inside}missing key {key!r}{other}."

    def _run(self, run: RunConfig, origin: Expanded) -> Run:
        gamma = brief(self._registry, "gamma", run.gamma)
        lenience = 1.0 if run.lenience is None else brief(self._registry, "lenience", run.lenience)
        drafter = drafter_label(run.drafter)
        name = run.name
        if name is None:
            name = f"{drafter}-{gamma}" + ("" if run.lenience is None else f"-lenience={lenience}")
            told = {("gamma",), ("lenience",), *_told_by_label(run.drafter, ("drafter",))}
            untold = {key: value for key, value in origin.choices.items() if origin.places[key] not in told}
            origin = replace(origin, choices=untold)
        labels = (drafter, gamma, lenience)
        return Run(name + origin.suffix, run.drafter, run.gamma, run.lenience, run.draft_sampling, labels)

    def _tasks(self, config: StudyConfig, runs: Sequence[Run]) -> list[Task]:
        """Return what is decoded; a study that names no tasks is one itself."""
        if config.tasks is None:
            self._check_choices(config, ())
            return [self._task(None, (), config, _NOTHING_SAID, runs)]
        origins = self._expanded["tasks"]
        names = [task.name + origin.suffix for task, origin in zip(config.tasks, origins, strict=True)]
        self._check_names("tasks", names)
        self._check_choices(config, names)
        return [
            self._task(name, ("tasks", place), config, task, _taking_part(name, config, runs))
            for place, (name, task) in enumerate(zip(names, config.tasks, strict=True))
        ]

    def _task(
        self, name: str | None, keys: Keys, config: StudyConfig, task: TaskConfig, runs: Sequence[Run]
    ) -> Task:
        """Return a task, what it leaves unsaid taken from the study."""
        target, prompts = task.target or config.target, task.prompts or config.prompts
        assert target is not None, "a missing target was found before"
        assert prompts is not None, "missing prompts were found before"
        self._check_target(target, (*keys, "target") if task.target else ("target",))
        texts, template = self._prompts(prompts, (*keys, "prompts") if task.prompts else ("prompts",))
        return Task(
            name=name,
            target=target,
            prompts_config=prompts,
            prompts=texts,
            chat_template=template,
            sampling=_merged(config.sampling, task.sampling),
            generation=_merged(config.generation, task.generation),
            runs=(Run(PLAIN), *runs),
        )

    def _check_names(self, section: str, names: list[str]) -> None:
        for name, count in Counter(names).items():
            places = [place for place, other in enumerate(names) if other == name]
            if name == PLAIN and section == "runs":
                self._note(
                    (section, places[0], "name"), f"the name {PLAIN!r} is taken by the baseline; choose another."
                )
            elif count > 1:
                give = "give each a `name` of its own"
                self._note((section, places[1], "name"), f"{count} {section} are called {name!r}; {give}.")

    def _check_choices(self, config: StudyConfig, names: Sequence[str]) -> None:
        """Note what runs say of tasks that are not there, and tasks that no run takes part in."""
        for place, run in enumerate(config.runs):
            for number, pattern in enumerate(run.tasks or ()):
                if not any(_chosen(name, pattern) for name in names):
                    missing = unknown_name("task", pattern, names) if names else "this study names no tasks."
                    self._note(("runs", place, "tasks", number), missing)
        for place, name in enumerate(names):
            if not any(_takes_part(run, name) for run in config.runs):
                self._note(("tasks", place), f"no run takes part in task {name!r}: each says other `tasks`.")

    def _check_target(self, target: TargetConfig, keys: Keys) -> None:
        try:
            model_folder(target.model, self._folder)
        except ModelError as error:
            self._note((*keys, "model"), error)

    def _check_capabilities(self, config: StudyConfig, runs: Sequence[Run], tasks: Sequence[Task]) -> None:
        """Note what drafters cannot do, and in which tasks, where those have targets of their own."""
        encoders = {task.name: has_encoder(task.target.model, self._folder) for task in tasks}
        for place, run in enumerate(runs):
            taken = [task.name for task in tasks if run in task.runs]
            found: dict[tuple[Keys, str], list[str | None]] = {}
            for name in taken:
                needs = unmet_needs(
                    self._registry,
                    cast("Any", run.drafter),
                    encoder_decoder=encoders[name],
                    batch_size=config.batch_size,
                    folder=self._folder,
                )
                for keys, error in needs:
                    found.setdefault((keys, str(error)), []).append(name)
            for (keys, problem), names in found.items():
                where = "" if names == taken else f"in task {', '.join(map(repr, names))}: "
                self._note(("runs", place, "drafter", *keys), where + problem)

    def _check_lossless(self, config: StudyConfig, runs: list[Run]) -> None:
        if not config.lossless:
            return
        for place, run in enumerate(runs):
            if not run.lossless:
                self._note(
                    ("runs", place, "lenience"),
                    f"the lenience of run {run.name!r} may be below 1, and the study says `lossless: true`; "
                    "leave it out, or say `lossless: false`.",
                )

    def _prompts(self, config: PromptsConfig, keys: Keys) -> tuple[tuple[PromptText, ...], str | None]:
        """Return the prompts and the chat template, read once: what was checked is decoded."""
        try:
            return read_prompts(config, self._folder), read_chat_template(config, self._folder)
        except PromptError as error:
            self._note((*keys, "file"), error)
            return (), None


def _takes_part(run: RunConfig, task: str) -> bool:
    return run.tasks is None or any(_chosen(task, pattern) for pattern in run.tasks)


def _chosen(task: str, pattern: str) -> bool:
    """Return whether a pattern stands for a task: `*` is any text, and all else is itself."""
    return fnmatchcase(task, pattern.replace("[", "[[]").replace("?", "[?]"))


def _taking_part(task: str, config: StudyConfig, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that take part in a task."""
    return [run for one, run in zip(config.runs, runs, strict=True) if _takes_part(one, task)]


_Settings = TypeVar("_Settings", bound="BaseModel")


def _merged(settings: _Settings, changes: _Settings | None) -> _Settings:
    """Return settings with those replaced that the others say."""
    if changes is None:
        return settings
    return settings.model_copy(update={name: getattr(changes, name) for name in changes.model_fields_set})


def _told_by_label(config: PluginConfig, keys: Keys) -> Iterator[Keys]:
    """Yield the keys of the settings that a drafter's label shows."""
    yield keys
    for one in nested_settings(config):
        if one.marker.kind == "drafter":
            yield (*keys, one.keys[0])
            yield from _told_by_label(one.config, (*keys, *one.keys))
