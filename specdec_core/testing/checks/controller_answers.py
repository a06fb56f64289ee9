"""Checks of controllers in simulated batches: the form and range of answers, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from specdec_core.interface.spec import PluginKind
from specdec_core.testing.controller_subject import GammaSubject, LenienceSubject
from specdec_core.testing.harness.scenarios import Scenario, ScenarioRow, scenario_of
from specdec_core.testing.harness.simulated_batch import SimulatedBatch
from specdec_core.testing.harness.state import changed_globals, global_state, is_leaked, weak_reference
from specdec_core.testing.registration import CheckFailure, check

ControllerSubject: TypeAlias = GammaSubject | LenienceSubject

BOTH: tuple[PluginKind, ...] = ("gamma", "lenience")
STEPS = 150
"""Length of a long run."""
VALID = ("form", "no exception")
"""The requirement where answers out of range are tolerated; see `SimulatedBatch`."""


def long_scenarios(subject: ControllerSubject) -> Iterator[Scenario]:
    """Yield long batches in which drafts are accepted and rejected in every way."""
    seed = subject.seed
    for greedy in (False, True):
        yield Scenario(tuple(ScenarioRow(seed + row, room=500) for row in range(3)), greedy)
        yield Scenario(
            (
                ScenarioRow(seed + 3, room=900, acceptance=1.0, empty_rate=0.0),
                ScenarioRow(seed + 4, room=500, acceptance=0.0, empty_rate=0.0),
                ScenarioRow(seed + 5, room=500, acceptance=0.7, empty_rate=0.5),
            ),
            greedy,
        )


def long_run(subject: ControllerSubject, steps: int = STEPS) -> int:
    """Return the length of a long run: less where time is short."""
    return subject.times(steps, steps // 5, "steps of a batch")


def answers(batch: SimulatedBatch) -> list[Any]:
    """Return all answers of a controller, for comparison with those in another batch."""
    return [*zip(batch.gammas, strict=True), *batch.watched, *batch.leniences]


def answers_for_row(batch: SimulatedBatch, row: int) -> list[Any]:
    """Return a controller's answers for one row, until the row ended."""
    found: list[Any] = []
    for step, report in enumerate(batch.reports):
        gamma = batch.gammas[step][row] if step < len(batch.gammas) else None
        leniences = batch.leniences[step] if report.outcome.drafted[row] else None
        found.append((gamma, report.outcome.drafted[row], None if leniences is None else leniences[row]))
        if report.outcome.finished[row]:
            break
    return found


def wrong_form(subject: ControllerSubject) -> str | None:
    """Return why a check does not apply when the form of answers is wrong, which is reported once."""

    def fails() -> bool:
        try:
            _require_form(subject)
        except CheckFailure:
            return True
        return False

    return f"its answers have the wrong form; see {subject.kind}-per-row" if subject.once("form", fails) else None


def _no_confidence(subject: GammaSubject) -> str | None:
    return None if subject.uses_confidence else "its sessions do not use confidence"


def _require_form(subject: ControllerSubject) -> None:
    for rows in (1, 3):
        subject.simulate(scenario_of(*range(rows), room=900), require=("form",)).run(30)


def _require_range(subject: ControllerSubject) -> None:
    steps = long_run(subject)
    for scenario in long_scenarios(subject):
        subject.simulate(scenario, require=("range", "no exception")).run(steps)


@check("gamma-per-row", kind="gamma")
def gamma_per_row(subject: GammaSubject) -> None:
    """`plan()` returns an int per row, or a tree's shape."""
    _require_form(subject)


@check("lenience-per-row", kind="lenience")
def lenience_per_row(subject: LenienceSubject) -> None:
    """`lenience()` returns a number or a list per row."""
    _require_form(subject)


@check("gamma-in-range", kind="gamma")
def gamma_in_range(subject: GammaSubject) -> None:
    """Gamma stays between 0 and `max_gamma`.

    Gamma stays between 0 and `max_gamma` in long batches, whatever is accepted.
    """
    _require_range(subject)


@check("lenience-in-range", kind="lenience")
def lenience_in_range(subject: LenienceSubject) -> None:
    """Lenience stays in (0, 1]."""
    _require_range(subject)


@check("max-gamma-constant", kind="gamma")
def max_gamma_constant(subject: GammaSubject) -> None:
    """`max_gamma` does not change."""
    controller = subject.fresh()
    before = controller.max_gamma
    steps = long_run(subject, 40)
    for scenario in long_scenarios(subject):
        batch = subject.simulate(scenario, controller)
        for _ in range(steps):
            batch.step()
            if controller.max_gamma != before:
                raise batch.failure(
                    f"max_gamma is now {controller.max_gamma}",
                    f"the same max_gamma as before: {before}",
                    "Buffers for max_gamma tokens are allocated when a batch opens. Return the largest gamma.",
                )


@check("keep-drafting", kind="gamma", skip_if=_no_confidence)
def keep_drafting(subject: GammaSubject) -> None:
    """`keep_drafting()` answers for each row.

    `keep_drafting()` returns one answer per row, also for rows that drafted nothing (NaN).
    """
    rows = (ScenarioRow(1, room=300), ScenarioRow(2, room=300, empty_rate=0.5), ScenarioRow(3, room=4))
    subject.simulate(Scenario(rows), require=("keep_drafting",)).run(40)
    subject.simulate(Scenario(rows, greedy=True, resumes=True), require=("keep_drafting",)).run(40)


@check("finished-rows", kind=BOTH, skip_if=wrong_form)
def finished_rows(subject: ControllerSubject) -> None:
    """It answers for rows that have ended.

    It answers for rows that have ended, also when they go on later, as inside a hierarchy.
    """
    rows = (ScenarioRow(1, room=3), ScenarioRow(2, room=40, end_rate=0.3), ScenarioRow(3, room=40))
    subject.simulate(Scenario(rows), require=VALID).run(60)
    subject.simulate(Scenario(rows, resumes=True), require=VALID).run(30)


@check("empty-drafts", kind=BOTH)
def empty_drafts(subject: ControllerSubject) -> None:
    """It accepts steps without a draft.

    It accepts reports of steps without a draft, for which it may not have been asked.
    """
    required = ("no exception",)
    subject.simulate(scenario_of(1, 2, room=30, empty_rate=1.0), require=required).run(8)
    subject.simulate(scenario_of(1, 2, room=1), require=required).run(2)
    subject.simulate(Scenario(scenario_of(1, 2).rows, max_gamma=0), require=required).run(4)
    batch = subject.simulate(scenario_of(1, 2, room=60), require=required).run(4)
    for _ in range(4):
        batch.step(draft=False)


@check("any-batch-size", kind=BOTH, skip_if=wrong_form)
def any_batch_size(subject: ControllerSubject) -> None:
    """It serves batches of any size, also at once.

    One controller serves batches of any size, one after another and at the same time.
    """
    controller: Any = subject.fresh()
    for rows in (3, 1, 8, 2):
        subject.simulate(scenario_of(*range(rows), room=30), controller, VALID).run(6)
    large, small = (subject.simulate(scenario_of(*some, room=99), controller, VALID) for some in ((1, 2, 3), (4,)))
    for _ in range(12):
        large.step()
        small.step()


@check("deterministic", kind=BOTH)
def deterministic(subject: ControllerSubject) -> None:
    """Equal inputs give equal answers."""
    steps = long_run(subject, 60)
    for scenario in long_scenarios(subject):
        first, second = (answers(subject.simulate(scenario).run(steps)) for _ in range(2))
        _require_equal(f"ran {scenario} twice, each time with a new controller", first, second)


@check(
    "rows-independent",
    kind=BOTH,
    required=("lenience",),
    skip_if=wrong_form,
    purpose="for draft lengths that no batch changes",
)
def rows_independent(subject: ControllerSubject) -> None:
    """A row's results do not depend on other rows.

    The answers for a row do not depend on the other rows of the batch.
    """
    row = ScenarioRow(subject.seed + 7, room=200)
    others: tuple[tuple[ScenarioRow, ...], ...] = (
        (ScenarioRow(8, room=200, acceptance=1.0),),
        (ScenarioRow(9, room=200, acceptance=0.0), ScenarioRow(10, room=5)),
    )
    steps = long_run(subject)
    alone = answers_for_row(subject.simulate(Scenario((row,))).run(steps), 0)
    hint = "An answer may depend on what was reported for its own row, and on nothing else."
    for more in others:
        batch = subject.simulate(Scenario((row, *more))).run(steps)
        did = f"ran a row alone, and as the first row of {batch.scenario}"
        _require_equal(did, alone, answers_for_row(batch, 0), hint)


@check("batches-independent", kind=BOTH, required=(), purpose="for repeatable runs")
def batches_independent(subject: ControllerSubject) -> None:
    """Other batches do not change its answers.

    A used controller answers like a new one, during and after other batches.
    """
    scenario = scenario_of(1, 2, room=200)
    other = Scenario((ScenarioRow(3, 300, acceptance=1.0), ScenarioRow(4, 300, acceptance=0.0)))
    steps = long_run(subject, 40)
    alone = answers(subject.simulate(scenario).run(steps))
    controller: Any = subject.fresh()
    batch, concurrent = subject.simulate(scenario, controller), subject.simulate(other, controller)
    for _ in range(steps):
        concurrent.step()
        batch.step()
    _require_equal(f"ran {scenario} alone, and together with another batch", alone, answers(batch))
    later = answers(subject.simulate(scenario, controller).run(steps))
    _require_equal(f"ran {scenario} with a new controller, and with one that was used before", alone, later)


@check("sessions-freed", kind=BOTH)
def sessions_freed(subject: ControllerSubject) -> None:
    """It does not keep closed sessions alive.

    The controller does not keep the session of a finished batch alive.
    """
    controller: Any = subject.fresh()
    for greedy in (False, True):
        batch = subject.simulate(Scenario(scenario_of(1, 2, room=20).rows, greedy), controller).run(40)
        session, log = weak_reference(batch.session), batch.log
        del batch
        if is_leaked(session):
            raise CheckFailure(
                f"{log}\nreleased its session",
                "the session is still alive: something refers to it",
                "no reference to it, so that memory does not grow with every batch",
                "Store what the controller learns from a batch, and not the session.",
            )


@check("inputs-unchanged", kind=BOTH)
def inputs_unchanged(subject: ControllerSubject) -> None:
    """It does not modify its inputs.

    It changes neither its settings nor the confidences that it receives.
    """
    controller: Any = subject.fresh()
    before, steps = repr(controller.config), long_run(subject, 40)
    for scenario in (*long_scenarios(subject), scenario_of(1, 2, room=20)):
        subject.simulate(scenario, controller, ("unchanged",)).run(steps)
    if repr(controller.config) != before:
        did = "ran simulated batches, and compared the controller's settings before and after"
        got = f"now {controller.config!r}"
        raise CheckFailure(did, got, f"as before: {before}", "Keep state in the session.")


@check("global-state-unchanged", kind=BOTH)
def global_state_unchanged(subject: ControllerSubject) -> None:
    """It leaves random generators, torch's settings and the environment alone.

    It leaves global random generators, torch settings and environment variables alone.
    """
    before = global_state()
    subject.simulate(scenario_of(1, 2, room=40)).run(20)
    subject.simulate(Scenario(scenario_of(1, 2).rows, greedy=True)).run(20)
    changed = changed_globals(before)
    if changed:
        raise CheckFailure(
            "built controllers, and ran simulated batches with them",
            f"changed: {', '.join(changed)}",
            "no change",
            "For random numbers use your own generator, with a seed from the settings.",
        )


def _require_equal(did: str, expected: Sequence[object], got: Sequence[object], hint: str | None = None) -> None:
    # Compared as text, since NaN is not equal to itself.
    pairs = zip(expected, got, strict=False)
    differing = next((n for n, (left, right) in enumerate(pairs) if repr(left) != repr(right)), None)
    if differing is None:
        if len(expected) == len(got):
            return
        differing = min(len(expected), len(got))
    raise CheckFailure(
        f"{did}; compared the answers",
        f"answer {differing} of the second run: {_at(got, differing)}",
        f"as in the first run: {_at(expected, differing)}",
        hint,
    )


def _at(values: Sequence[object], index: int) -> str:
    return repr(values[index]) if index < len(values) else "none: the row had ended"
