"""Running a study: every run is loaded once, warmed up once, and timed in turns with the others."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import transformers

import specdec_core
from specdec_core.border import Drafter, PluginConfig, PluginKind
from specdec_core.decoding import Decoder, Metrics
from specdec_core.errors import ConfigError, PluginError, SpecdecError
from specdec_core.models import LoadedModel, inflate, load_model
from specdec_core.randomness import row_seed
from specdec_core.registry import Registry, default_registry, unmet_needs
from specdec_core.settings import SamplingSettings
from specdec_core.study.config import TargetConfig
from specdec_core.study.journal import Journal, Repeat, StorageError
from specdec_core.study.source import dotted
from specdec_core.study.study import Run, Study

_WARM_UP_TOKENS = 8


class StudyObserver(Protocol):
    """Is told how a study goes on; for progress on a terminal."""

    def began(self, repeats: int, finished: int) -> None:
        """A study of so many repeats begins; so many were finished before."""

    def loading(self, what: str) -> None:
        """A model or a drafter is being loaded."""

    def measuring(self, run: str, repeat: int) -> None:
        """A repeat begins."""

    def measured(self, run: str, repeat: int, tokens_per_second: float) -> None:
        """A repeat is finished and noted."""

    def failed(self, run: str, reason: str) -> None:
        """A run is given up; the others go on."""


@dataclass(frozen=True)
class StudyResult:
    """What a study measured.

    Attributes:
        study: The study.
        repeats: Every finished repeat, by name of the run and number from 1.
        failed: Why runs were given up, by name.
        identity: Settings, versions and device, as plain data.
    """

    study: Study
    repeats: Mapping[tuple[str, int], Repeat]
    failed: Mapping[str, str]
    identity: Mapping[str, Any]


def run_study(
    study: Study,
    observer: StudyObserver,
    *,
    output: Path | None = None,
    fresh: bool = False,
    registry: Registry | None = None,
) -> StudyResult:
    """Run a study, or the rest of one that was stopped.

    Args:
        study: What to run.
        observer: Is told how it goes on.
        output: Folder that keeps finished repeats; without one, nothing can be resumed.
        fresh: Forget what an earlier study left in the folder.
        registry: Where plugins come from; by default those installed.

    Raises:
        SpecdecError: When the target cannot be loaded or decode the prompts, or results cannot be kept beside
            what the folder holds. What goes wrong in another run is noted in the result, and the others go on.
    """
    registry = registry or default_registry()
    observer.loading(study.config.target.model)
    target = load_target(study.config.target, study.folder)
    identity = describe_study(study, target, registry)
    journal = Journal(output, identity, fresh=fresh) if output is not None else None
    if journal is not None:
        _check_counters(journal)
    session = _Session(study, target, registry, observer, journal)
    session.run()
    return StudyResult(study, session.finished, session.failed, identity)


def _check_counters(journal: Journal) -> None:
    """Refuse repeats in which another version counted something else, before any time is spent beside them."""
    for repeat in journal.finished.values():
        try:
            Metrics.from_plain(repeat.metrics)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{journal.path} was written by another version of specdec, whose counters differ: {error}. "
                "Choose another --output, or pass --fresh to begin again there."
            ) from error


def load_target(config: TargetConfig, folder: Path = Path()) -> LoadedModel:
    """Load a study's target, and inflate it where the study says so.

    Args:
        config: What the study says.
        folder: Where a relative folder is meant from.

    Raises:
        ModelError: It cannot be loaded, decoded exactly, or inflated.
    """
    target = load_model(**config.model_dump(exclude={"inflate"}), folder=folder)
    return target if config.inflate is None else inflate(target, config.inflate.layers, config.inflate.width)


class _Session:
    """A study while it runs."""

    def __init__(
        self,
        study: Study,
        target: LoadedModel,
        registry: Registry,
        observer: StudyObserver,
        journal: Journal | None,
    ) -> None:
        self._study = study
        self._target = target
        self._registry = registry
        self._observer = observer
        self._journal = journal
        self._decoders: dict[str, Decoder] = {}
        self.finished: dict[tuple[str, int], Repeat] = dict(journal.finished) if journal else {}
        self.failed: dict[str, str] = {}

    def run(self) -> None:
        repeats = range(1, self._study.config.repeats + 1)
        todo = [(run, n) for n in repeats for run in self._study.runs if (run.name, n) not in self.finished]
        total = len(self._study.runs) * len(repeats)
        self._observer.began(total, total - len(todo))
        # All are loaded before the first is timed, so that every repeat meets the same memory.
        for run in dict.fromkeys(run for run, _ in todo):
            self._attempt(run, lambda run=run: self._prepare(run))
        for run, number in todo:
            if run.name not in self.failed:
                self._attempt(run, lambda run=run, number=number: self._measure(run, number))

    def _attempt(self, run: Run, action: Any) -> None:
        try:
            action()
        except SpecdecError as error:
            if run.drafter is None or isinstance(error, StorageError):
                raise  # without a baseline, or a place for results, there is nothing to compare
            self.failed[run.name] = str(error)
            self._observer.failed(run.name, str(error))

    def _prepare(self, run: Run) -> None:
        self._observer.loading(run.name)
        config = self._study.config
        decoder = make_decoder(
            self._target,
            run,
            registry=self._registry,
            sampling=config.sampling,
            batch_size=config.batch_size,
            folder=self._study.folder,
        )
        short = min(_WARM_UP_TOKENS, config.generation.max_new_tokens)
        settings = config.generation.model_copy(update={"max_new_tokens": short})
        decoder.generate(next(self._batches())[0], settings)
        self._decoders[run.name] = decoder

    def _measure(self, run: Run, number: int) -> None:
        self._observer.measuring(run.name, number)
        metrics, failures = Metrics(), []
        settings = self._study.config.generation
        for prompts, seeds in self._batches():
            result = self._decoders[run.name].generate(prompts, settings, seeds=seeds)
            metrics += result.metrics
            failures += [asdict(failure) for failure in result.failures]
        repeat = Repeat(run.name, number, asdict(metrics), tuple(failures))
        if self._journal is not None:
            self._journal.add(repeat)
        self.finished[run.name, number] = repeat
        self._observer.measured(run.name, number, metrics.tokens_per_second)

    def _batches(self) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
        """Yield the prompts in batches, and the seed of each: the same in every repeat, run and batch size."""
        config = self._study.config
        for start in range(0, len(self._study.prompts), config.batch_size):
            batch = self._study.prompts[start : start + config.batch_size]
            seeds = [row_seed(config.generation.seed, start + n) for n in range(len(batch))]
            yield [prompt.text for prompt in batch], seeds


def make_decoder(
    target: LoadedModel,
    run: Run,
    *,
    registry: Registry,
    sampling: SamplingSettings,
    batch_size: int = 1,
    folder: Path = Path(),
    strict: bool = False,
) -> Decoder:
    """Load a run's drafter and controllers and return their decoder.

    Args:
        target: The target, loaded.
        run: Settings of drafter and controllers.
        registry: Where plugins come from.
        sampling: The target's settings.
        batch_size: How many prompts will be decoded together.
        folder: Where relative paths are meant from.
        strict: Raise when a plugin fails.

    Raises:
        PluginError: When a plugin cannot be loaded, or cannot do what is asked of it.
    """
    if run.drafter is None:
        return Decoder(target, sampling=sampling, strict=strict)
    return Decoder(
        target,
        make_drafter(target, run.drafter, registry=registry, batch_size=batch_size, folder=folder),
        gamma=_controller(registry, "gamma", run.gamma),
        lenience=_controller(registry, "lenience", run.lenience),
        sampling=sampling,
        draft_sampling=run.draft_sampling,
        strict=strict,
    )


def make_drafter(
    target: LoadedModel,
    config: PluginConfig,
    *,
    registry: Registry,
    batch_size: int = 1,
    folder: Path = Path(),
) -> Drafter:
    """Load a drafter for a target.

    Args:
        target: The target, loaded.
        config: The drafter's settings, name included.
        registry: Where plugins come from.
        batch_size: How many prompts will be decoded together.
        folder: Where relative paths are meant from.

    Raises:
        PluginError: When it cannot be loaded, or cannot do what is asked of it.
    """
    needs = unmet_needs(
        registry,
        config,
        encoder_decoder=target.encoder_decoder,
        batch_size=batch_size,
        has_tokenizer=target.tokenizer is not None,
        has_hidden_states=target.features is not None,
    )
    for keys, error in needs:
        raise PluginError(f"{dotted(keys)}: {error}" if keys else str(error)) from error
    drafter: Drafter = registry.create("drafter", _name(config), config, target.info(folder))
    return drafter


def describe_study(study: Study, target: LoadedModel, registry: Registry) -> dict[str, Any]:
    """Return all that must be equal for two results to be of one study, as plain data."""
    shared = study.shared()
    # More repeats of the same are welcome, and what a study forbids changes no result.
    del shared["repeats"], shared["lossless"]
    texts = hashlib.sha256("\0".join(prompt.text for prompt in study.prompts).encode()).hexdigest()[:16]
    return {
        "settings": shared,
        "runs": [run.resolved() for run in study.runs],
        "prompts": {"count": len(study.prompts), "sha256": texts},
        "versions": versions(registry),
        "device": describe_device(target.device),
    }


def versions(registry: Registry) -> dict[str, str]:
    """Return the versions of what decides a result: this package, its libraries, the plugins."""
    plugins = {record.distribution: record.version for record in registry.records() if record.state == "ready"}
    plugins.pop("specdec-core", None)
    return {
        "specdec": specdec_core.__version__,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "python": platform.python_version(),
        **plugins,
    }


def describe_device(device: torch.device) -> str:
    """Return what a reader of results should know of a device."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"


def _controller(registry: Registry, kind: PluginKind, config: PluginConfig | None) -> Any:
    return None if config is None else registry.create(kind, _name(config), config)


def _name(config: PluginConfig) -> str:
    # The models that a study is read with add the plugin's name to its settings.
    name: str = cast("Any", config).name
    return name
