"""Measuring drafters on the target's own texts: alpha by position, T(k), D(k) and the overhead."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specdec_core.costs.measurement import Acceptance, DrafterMeasurement, Measurement
from specdec_core.interface import Progress, SpecdecError
from specdec_core.offline.record.format import Record
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.record.tasks import named_models
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import TextAcceptance
from specdec_core.study import Run, Study
from specdec_core.study.config.study import drafter_key, drafter_label
from specdec_core.theory.intervals import ratio_interval


def measure(
    study: Study,
    progress: Progress,
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    gamma: int = 8,
    timings: int = 20,
    keep: Callable[[Measurement], None] = lambda _: None,
) -> tuple[Measurement | None, Mapping[str, str]]:
    """Measure the drafters of a study with one task.

    The target decodes the prompts alone at each temperature, and its steps are timed with drafts of 0, 1, ...
    gamma tokens. Then every drafter is asked for drafts along these texts, and timed.

    Args:
        study: The study; each distinct drafter of its runs is measured once.
        progress: Where progress is reported.
        temperatures: Temperatures of target and drafters; 0 is greedy.
        gamma: The longest draft.
        timings: Number of timings of each draft length.
        keep: Called with the measurement so far whenever a drafter is finished.

    Returns:
        The measurement, None if all drafters failed; and why each failed drafter was abandoned, by name.

    Raises:
        SpecdecError: The target or the prompts cannot be used.
    """
    (task,) = study.tasks
    tasks = tuple(
        replace(task, name=f"T = {each:g}", sampling=task.sampling.model_copy(update={"temperature": each}))
        for each in temperatures
    )
    measurement: Measurement | None = None
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="specdec-measure-") as folder:
        options = RecordOptions(gamma=gamma, timings=timings)
        record = record_study(replace(study, tasks=tasks), Path(folder) / "record", progress, options)
        record = replace(record, named=named_models(tasks))
        times = record.header.times
        assert times is not None, "they were asked for"
        for name, run in _drafters(task.runs[1:]).items():
            try:
                one = _measure(name, run, record, study.folder, gamma, timings, progress)
            except SpecdecError as error:
                failed[name] = str(error)
                continue
            measurement = Measurement(
                target=task.target.model,
                device=times.device,
                sampling=task.sampling.model_dump(mode="json", exclude={"temperature"}),
                versions=record.header.versions,
                drafters=(*(() if measurement is None else measurement.drafters), one),
            )
            keep(measurement)
    return measurement, failed


def _drafters(runs: Sequence[Run]) -> dict[str, Run]:
    """Return a run of each distinct drafter, by its label, or by the run's name where several share a label."""
    distinct = {drafter_key(run.drafter, run.draft_sampling): run for run in reversed(runs)}
    labels = {key: drafter_label(run.drafter) for key, run in distinct.items() if run.drafter is not None}
    count = Counter(labels.values())
    found = {label if count[label] == 1 else distinct[key].name: distinct[key] for key, label in labels.items()}
    return dict(reversed(found.items()))


def _measure(
    name: str, run: Run, record: Record, folder: Path, gamma: int, timings: int, progress: Progress
) -> DrafterMeasurement:
    assert run.drafter is not None, "the baseline drafts nothing"
    assert record.header.times is not None, "they were asked for"
    acceptance = []
    seconds = record.header.times.machine.target
    hottest = max(part.header.sampling.temperature for part in record.parts)
    for part in record.parts:
        sampling = part.header.sampling
        replay = DrafterReplay(
            record,
            part,
            run.drafter,
            max_gamma=gamma,
            draft_sampling=run.draft_sampling,
            folder=folder.absolute(),
            progress=progress,
        )
        acceptance.append(mean_acceptance(replay.acceptance(), sampling.temperature))
        if sampling.temperature == hottest:
            progress.stage(f"{name}: times")
            seconds = replay.costs(seconds, timings)
    own = None if run.draft_sampling is None else run.draft_sampling.model_dump(mode="json")
    return DrafterMeasurement(
        name=name,
        settings=run.drafter.model_dump(mode="json"),
        draft_sampling=own,
        acceptance=tuple(acceptance),
        seconds=seconds,
    )


def mean_acceptance(texts: Sequence[TextAcceptance], temperature: float) -> Acceptance:
    """Return alpha and acceptance by position over the drafts that begin at every token of some texts.

    Let a_i be the probability that token i of a draft is accepted, given the text and that those before it were.
    Token i is verified with probability w_i = a_1 ... a_{i-1}, so

        P(accepted at i | accepted before) = E(w_i a_i) / E(w_i),

    where both expectations are means over the positions of the texts. The token that follows in the text was drawn
    from p, so that E(a_1) = E(min(1, q / p)) = E(sum_x min(p, q)), which is alpha.

    Args:
        texts: The acceptance of a drafter along each text.
        temperature: Temperature of the texts.

    References:
        Leviathan et al. 2023, Definition 3.1 to Corollary 3.6 and section 4.2 (arXiv 2211.17192).
    """
    sums = np.stack([_sums(text) for text in texts])  # [N, 5, K]
    accepted, reached, possible, drafted, asked = sums.sum(axis=0)
    alpha = _ratio(accepted, reached)
    known = max(1, int(np.count_nonzero(reached)))
    prompts = [text.number for text in texts]
    interval = None
    if reached[0]:
        interval = ratio_interval(sums[:, 0, 0].tolist(), sums[:, 1, 0].tolist(), prompts)
    low, high = np.clip(interval or (0.0, 1.0), 0.0, 1.0)
    return Acceptance(
        temperature=temperature,
        tokens=sum(map(len, texts)),
        alpha=alpha[0],
        low=float(low),
        high=float(high),
        by_position=alpha[:known],
        proposed=_ratio(reached, possible),
        drafted=_ratio(drafted, asked),
    )


def _sums(text: TextAcceptance) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return sums over the positions of a text, `[5, K]`: accepted, reached, possible, drafted, asked tokens."""
    start, at = np.arange(len(text))[:, None], np.arange(text.longest)
    asked = at < np.minimum(text.reach, len(text)) - start
    drafted = asked & (at < text.offered[:, None])
    accept = np.where(drafted, text.accept(), 0.0)
    before = np.concatenate([np.ones((len(text), 1)), np.cumprod(accept, axis=1)[:, :-1]], axis=1)
    each = [before * accept, before * drafted, before * asked, drafted, asked]
    return np.stack([one.sum(axis=0) for one in each]).astype(np.float64)


def _ratio(part: np.ndarray, whole: np.ndarray) -> tuple[float, ...]:
    """Return part / whole in [0, 1], or 0 where whole is 0."""
    ratio = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return tuple(map(float, ratio.clip(0.0, 1.0)))
