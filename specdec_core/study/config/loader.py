"""Loading a study: reading, expanding grids, and checking everything that needs no model. Imports no torch."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specdec_core.interface import PluginConfig
from specdec_core.interface.errors import ConfigError, ModelError, PromptError, unknown_name
from specdec_core.interface.run import RunSettings
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models.load.resolve import model_folder
from specdec_core.registry.nesting import Keys, dotted, nested_settings
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.validation_errors import MAX_PROBLEMS, Form, describe
from specdec_core.study.config.benchmarks import GENERATION, SAMPLING
from specdec_core.study.config.checks import run_problems
from specdec_core.study.config.deploy import as_in_vllm
from specdec_core.study.config.overrides import Expanded, apply_overrides, expand, too_many
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import in_both, read_chat_template, read_prompts
from specdec_core.study.config.schema import PromptsConfig, RunConfig, StudyConfig, TaskConfig, study_model
from specdec_core.study.config.study import BASELINE, Run, RunLabels, Study, Task, controller_label, drafter_label
from specdec_core.study.config.yaml_source import Document, document_of, read_document

MAX_RUNS = 5_000
"""The most runs that a study may have, with grids expanded and those of all tasks together."""


def load_study(
    study: Path | Mapping[str, Any],
    settings: Sequence[str] = (),
    registry: Registry | None = None,
    *,
    max_runs: int = MAX_RUNS,
    recorded: Sequence[Task] = (),
    options: Mapping[Keys, str] | None = None,
) -> Study:
    """Read a study and check everything that can be checked without loading a model.

    Args:
        study: A YAML file, or a mapping of what it would hold. Relative paths in a mapping start at the current
            folder.
        settings: Overrides in the form `key=value`, as passed to `--set`.
        registry: The plugins that the study may name; by default the installed ones.
        max_runs: The most runs that it may have, those of all tasks together.
        recorded: The tasks of a record. A study that says nothing but its runs is compared on them.
        options: For a mapping that the options of a command make: the option that gave each value, by its keys.
            It may lack runs.

    Raises:
        ConfigError: With one line per problem, each beginning with file, line and column; those of a mapping begin
            with the option, or with `study`.
    """
    registry = registry or default_registry()
    if isinstance(study, Mapping):
        path, document = Path("study"), document_of(study, "study")
        document.options = options or {}
    else:
        path, document = study, read_document(study)
    apply_overrides(document, settings)
    return _Loader(document, registry, path, max_runs, recorded).study()


_OF_TASKS = ("target", "prompts", "tasks", "sampling", "generation", "constraint")
"""Keys of a study that say what is decoded; without any of them, a record can."""
_UNNAMED_TASK = TaskConfig(name="the study")
"""The only task of a study without `tasks`; it changes no setting of the study."""


class _Loader:
    """Builds a study and collects its problems, so that all of them are reported at once."""

    def __init__(
        self, document: Document, registry: Registry, path: Path, max_runs: int, recorded: Sequence[Task] = ()
    ) -> None:
        self._document = document
        self._registry = registry
        self._path = path
        self._folder = path.parent
        self._max_runs = max_runs
        self._recorded = () if any(key in document.data for key in _OF_TASKS) else recorded
        self._expanded = {section: expand(document, section, max_runs) for section in ("tasks", "runs")}
        self._problems: dict[str, None] = {}

    def study(self) -> Study:
        config = self._validated()
        runs = [self._run(run, origin) for run, origin in zip(config.runs, self._expanded["runs"], strict=True)]
        self._check_names("runs", [run.name for run in runs])
        tasks = self._tasks(config, runs)
        for problem in run_problems(config, runs, tasks, self._registry, self._folder):
            self._note(*problem)
        self._raise_problems()
        left_out: tuple[str, ...] = ()
        if config.deploy is not None:
            tasks, left_out = as_in_vllm(tasks, recorded=bool(self._recorded))
            runs = list({run.name: run for task in tasks for run in task.runs[1:]}.values())
        return Study(self._path, config, (_baseline(config), *runs), tuple(tasks), left_out)

    def _where(self, path: Keys, key: bool = False) -> str:
        origin = self._origin(path)
        return self._document.where(path if origin is None else origin.written(path[2:]), key=key)

    def _written(self, path: Keys) -> Keys:
        """Return the keys of a setting as written, before grids were expanded; those after an option."""
        origin = self._origin(path)
        return self._document.shown(path if origin is None else (origin.section, origin.index, *path[2:]))

    def _origin(self, path: Keys) -> Expanded | None:
        """Return the entry that holds a setting, if it is in a list that may have grids."""
        if len(path) < 2 or not isinstance(path[1], int):
            return None
        expanded = self._expanded.get(str(path[0]))
        return expanded[path[1]] if expanded else None

    def _note(self, path: Keys, problem: object, about: str = "") -> None:
        """Remember a problem; there may be thousands, of which the first are enough.

        Args:
            path: The keys of the setting.
            problem: What is wrong.
            about: The beginning of the message, unless an option begins it.
        """
        about = about if self._document.shown(path) == path else ""
        self._problems[f"{self._where(path)}: {about}{problem}"] = None
        if len(self._problems) == MAX_PROBLEMS:
            self._problems["These are the first problems; there may be more."] = None
            self._raise_problems()

    def _raise_problems(self) -> None:
        if self._problems:
            raise ConfigError("\n".join(self._problems))

    def _validated(self) -> StudyConfig:
        model = study_model(self._registry, runs_needed=not self._document.options)
        data = dict(self._document.data)
        data |= {
            section: [one.data for one in expanded] for section, expanded in self._expanded.items() if expanded
        }
        missing = [*([] if self._recorded else self._missing(data)), *self._incomplete(data)]
        try:
            config = model.model_validate(data, context={"folder": self._folder})
        except ValidationError as error:
            form: Form = "yaml" if self._document.located else "python"
            messages = describe(error, data, self._where, self._written, form=form)
            raise ConfigError("\n".join([*missing, *messages])) from None
        if missing:
            raise ConfigError("\n".join(missing))
        return config

    def _missing(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message for each key that neither a task nor the study gives."""
        tasks = data.get("tasks")
        paths: list[Keys] = [("tasks", index) for index in range(len(tasks))] if isinstance(tasks, list) else [()]
        for key in ("target", "prompts"):
            for path in paths if data.get(key) is None else ():
                entry = data["tasks"][path[1]] if path else data
                if isinstance(entry, Mapping) and entry.get(key) is None:
                    inside = f"{dotted(self._written(path))}: " if path else ""
                    other = "; add it here, or to the whole study" if path else ""
                    yield f"{self._where(path)}: {inside}missing key {key!r}{other}."

    def _incomplete(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message for each key that a run lacks; an engine knows what it drafts with."""
        runs = data.get("runs")
        for index, entry in enumerate(runs if isinstance(runs, list) else ()):
            for key in ("drafter", "gamma"):
                keys: Keys = ("runs", index, key)
                other = "gamma" if key == "drafter" else "drafter"
                alone = isinstance(entry, Mapping) and entry.get("engine") is not None and entry.get(other) is None
                if isinstance(entry, Mapping) and entry.get(key) is None and not alone:
                    yield f"{self._where(keys)}: {dotted(self._written(keys[:2]))}: missing key {key!r}."

    def _run(self, run: RunConfig, origin: Expanded) -> Run:
        if run.engine is not None and run.drafter is None:
            served = run.name or run.engine.model
            labels = RunLabels(f"served by {run.engine.host}", "")
            return _settings_of(run, served + origin.suffix, labels)
        gamma = controller_label(self._registry, "gamma", run.gamma)
        lenience = 1.0 if run.lenience is None else controller_label(self._registry, "lenience", run.lenience)
        drafter = drafter_label(run.drafter)
        rule = None if run.rule is None else run.rule.name
        name = run.name
        if name is None:
            name = f"{drafter}-{gamma}" + ("" if run.lenience is None else f"-lenience={lenience}")
            name += "" if rule is None else f"-{rule}"
            name += "" if run.draft_beams is None else f"-draft_beams={run.draft_beams}"
            named: list[Keys] = [("gamma",), ("lenience",), ("rule",), ("draft_beams",)]
            labeled = {*named, *_labeled_keys(run.drafter, ("drafter",))}
            others = {key: value for key, value in origin.choices.items() if origin.resolved[key] not in labeled}
            origin = replace(origin, choices=others)
        if run.engine is not None:
            drafter += f", served by {run.engine.host}"
        labels = RunLabels(drafter, gamma, lenience, rule)
        return _settings_of(run, name + origin.suffix, labels)

    def _tasks(self, config: StudyConfig, runs: Sequence[Run]) -> list[Task]:
        """Return the tasks; a study without `tasks` is a single unnamed one."""
        if self._recorded and config.warmup_prompts is not None:
            self._note(
                ("warmup_prompts",),
                "warmup_prompts: a record holds no texts of other prompts, so a replay warms nothing up. Remove "
                "the setting, or name `target` and `prompts` and compare live.",
            )
        if self._recorded:
            chosen = self._chosen(config, [task.name for task in self._recorded if task.name is not None])
            pairs = list(zip(runs, chosen, strict=True))
            of_task = [[run for run, of in pairs if {task.name} <= {None, *of}] for task in self._recorded]
            both = zip(self._recorded, of_task, strict=True)
            return [replace(task, runs=(_baseline(config), *own)) for task, own in both]
        if config.tasks is None:
            self._chosen(config, ())
            return [self._task(None, (), config, _UNNAMED_TASK, runs)]
        origins = self._expanded["tasks"]
        names = [task.name + origin.suffix for task, origin in zip(config.tasks, origins, strict=True)]
        self._check_names("tasks", names)
        chosen = self._chosen(config, names)
        return [
            self._task(
                name, ("tasks", index), config, task, [r for r, of in zip(runs, chosen, strict=True) if name in of]
            )
            for index, (name, task) in enumerate(zip(names, config.tasks, strict=True))
        ]

    def _task(
        self, name: str | None, keys: Keys, config: StudyConfig, task: TaskConfig, runs: Sequence[Run]
    ) -> Task:
        """Return a task; settings that it omits are those of the study."""
        target, prompts = task.target or config.target, task.prompts or config.prompts
        assert target is not None, "_missing reports a missing target"
        assert prompts is not None, "_missing reports missing prompts"
        self._check_target(target, (*keys, "target") if task.target else ("target",))
        texts, template = self._prompts(prompts, (*keys, "prompts") if task.prompts else ("prompts",))
        warmup = task.warmup_prompts or config.warmup_prompts
        return Task(
            name=name,
            target=target,
            prompts_config=prompts,
            prompts=texts,
            chat_template=template,
            sampling=self._sampling(config, task, benchmark=prompts.benchmark is not None),
            generation=self._generation(config, task, keys, benchmark=prompts.benchmark is not None),
            runs=(_baseline(config), *runs),
            warmup_config=warmup,
            warmup=() if warmup is None else self._warmup(warmup, texts, keys if task.warmup_prompts else ()),
        )

    def _warmup(self, config: PromptsConfig, measured: Sequence[PromptText], keys: Keys) -> tuple[PromptText, ...]:
        """Return the warm-up prompts, none of which may be measured, too."""
        path = (*keys, "warmup_prompts")
        texts, _ = self._prompts(config, path)
        if both := in_both(texts, measured):
            self._note(
                path,
                f"warmup_prompts: {len(both)} of {len(texts)} are measured, too, first {both[0]!r}; a drafter "
                "would already know their outputs. Warm up with other prompts.",
            )
        return texts

    def _sampling(self, config: StudyConfig, task: TaskConfig, *, benchmark: bool) -> SamplingSettings:
        """Return the settings of a task; a benchmark has its own if the study states none at all."""
        stated = _merged(config.sampling, task.sampling)
        return stated if stated.model_fields_set or not benchmark else SamplingSettings(**SAMPLING)

    def _generation(
        self, config: StudyConfig, task: TaskConfig, keys: Keys, *, benchmark: bool
    ) -> GenerationSettings:
        """Return the settings of a task with its constraint, which stands beside them in a study."""
        own = "constraint" in task.model_fields_set
        stated = _merged(config.generation, task.generation)
        unstated = {key: value for key, value in GENERATION.items() if key not in stated.model_fields_set}
        settings = {**dict(stated), **(unstated if benchmark else {})}
        try:
            constraint = task.constraint if own else config.constraint
            return GenerationSettings.model_validate({**settings, "constraint": constraint})
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            self._note((*(keys if own else ()), "constraint"), f"{problem}.", "constraint: ")
            return config.generation

    def _check_names(self, section: str, names: list[str]) -> None:
        indices: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            indices.setdefault(name, []).append(index)
        for name, found in indices.items():
            if name == BASELINE and section == "runs":
                self._note(
                    (section, found[0], "name"),
                    f"the name {BASELINE!r} is taken by the baseline; choose another.",
                )
            elif len(found) > 1:
                give = "give each its own `name`"
                self._note((section, found[1], "name"), f"{len(found)} {section} are called {name!r}; {give}.")

    def _chosen(self, config: StudyConfig, names: Sequence[str]) -> list[frozenset[str]]:
        """Return the tasks of each run; report tasks that runs name but do not exist, and tasks without a run."""
        chosen = [self._tasks_of(index, run, names) for index, run in enumerate(config.runs)]
        count = sum(map(len, chosen))
        if count > self._max_runs:
            where = self._where(("tasks",), key=True)
            raise ConfigError(f"{where}: the tasks together have {count:,} runs; {too_many(self._max_runs)}")
        for index, name in enumerate(names):
            if chosen and not any(name in tasks for tasks in chosen):
                self._note(("tasks", index), f"task {name!r} has no runs: the `tasks` of every run exclude it.")
        return chosen

    def _tasks_of(self, run_index: int, run: RunConfig, names: Sequence[str]) -> frozenset[str]:
        if run.tasks is None:
            return frozenset(names)
        found: set[str] = set()
        for number, pattern in enumerate(run.tasks):
            # `*` matches any text, everything else itself.
            matches = fnmatch.filter(names, pattern.replace("[", "[[]").replace("?", "[?]"))
            if not matches:
                missing = unknown_name("task", pattern, names) if names else "this study has no `tasks`."
                self._note(("runs", run_index, "tasks", number), missing)
            found.update(matches)
        return frozenset(found)

    def _check_target(self, target: TargetConfig, keys: Keys) -> None:
        try:
            model_folder(target.model, self._folder)
        except ModelError as error:
            self._note((*keys, "model"), error)

    def _prompts(self, config: PromptsConfig, keys: Keys) -> tuple[tuple[PromptText, ...], str | None]:
        """Return the prompts and the chat template."""
        try:
            return read_prompts(config, self._folder), read_chat_template(config, self._folder)
        except PromptError as error:
            source = next(one for one in ("dataset", "benchmark", "file") if one == "file" or getattr(config, one))
            self._note((*keys, source), error)
            return (), None


def _settings_of(run: RunConfig, name: str, labels: RunLabels) -> Run:
    given = {field: getattr(run, field) for field in (*RunSettings.model_fields, "engine")}
    return Run(name=name, labels=labels, **given)


def _baseline(config: StudyConfig) -> Run:
    return Run(name=BASELINE, engine=None if config.baseline is None else config.baseline.engine)


_Settings = TypeVar("_Settings", bound="BaseModel")


def _merged(settings: _Settings, changes: _Settings | None) -> _Settings:
    """Return settings, replaced by the changes that were written."""
    if changes is None:
        return settings
    return settings.model_copy(update={name: getattr(changes, name) for name in changes.model_fields_set})


def _labeled_keys(config: PluginConfig, keys: Keys) -> Iterator[Keys]:
    """Yield the keys of settings that a drafter's label already shows."""
    yield keys
    for one in nested_settings(config):
        if one.marker.kind == "drafter":
            yield (*keys, one.keys[0])
            yield from _labeled_keys(one.config, (*keys, *one.keys))
