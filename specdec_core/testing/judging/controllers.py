"""What the checks of gamma and of lenience controllers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from specdec_core.testing.checking import CheckFailure, Unfit
from specdec_core.testing.controller_subject import GammaSubject, LenienceSubject
from specdec_core.testing.instruments.courses import Course, RowScript, Script, script
from specdec_core.testing.instruments.freed import is_kept, reference
from specdec_core.testing.instruments.process import changes, shared_state

ControllerSubject: TypeAlias = GammaSubject | LenienceSubject

STEPS = 150
"""Steps of a long history."""
FORM = ("form",)
HANDED = ("handed",)
SOUND = ("form", "raising")
"""What is judged of a course where its bounds are not; see `Course`."""


def histories(subject: ControllerSubject) -> Iterator[Script]:
    """Yield long batches in which drafts are kept and refused in every way."""
    seed = subject.seed
    for argmax in (False, True):
        yield Script(tuple(RowScript(seed + row, room=500) for row in range(3)), argmax)
        yield Script(
            (
                RowScript(seed + 3, room=900, gifted=1.0, silent=0.0),
                RowScript(seed + 4, room=500, gifted=0.0, silent=0.0),
                RowScript(seed + 5, room=500, gifted=0.7, silent=0.5),
            ),
            argmax,
        )


def answers(course: Course) -> list[Any]:
    """Return all that a controller answered, in order; of what is compared with another course."""
    return [*zip(course.gammas, strict=True), *course.watched, *course.leniences]


def of_row(course: Course, row: int) -> list[Any]:
    """Return what a controller answered for one row, while that went on."""
    told: list[Any] = []
    for step, report in enumerate(course.reports):
        gamma = course.gammas[step][row] if step < len(course.gammas) else None
        asked = course.leniences[step] if report.drafted[row] else None
        told.append((gamma, report.drafted[row], None if asked is None else asked[row]))
        if report.finished[row]:
            break
    return told


def form_is_wrong(name: str) -> Unfit:
    """Return what says that a check need not be run, as the one of this name says why."""

    def reason(subject: ControllerSubject) -> str | None:
        wrong = subject.once("form", lambda: _fails(lambda: require_form(subject)))
        return f"its answers have the wrong form, as {name} says" if wrong else None

    return reason


def _fails(function: Callable[[], None]) -> bool:
    try:
        function()
    except CheckFailure:
        return True
    return False


def require_form(subject: ControllerSubject) -> None:
    """Play batches that do not end."""
    for rows in (1, 3):
        subject.course(script(*range(rows), room=900), judged=FORM).play(30)


def require_bounds(subject: ControllerSubject) -> None:
    """Play long batches."""
    for one in histories(subject):
        subject.course(one, judged=("bounds", "raising")).play(STEPS)


def require_any_batch(subject: ControllerSubject) -> None:
    """Play batches of many sizes with one controller: one after another, and two at once."""
    controller: Any = subject.fresh()
    for rows in (3, 1, 8, 2):
        subject.course(script(*range(rows), room=30), controller, SOUND).play(6)
    large, small = (subject.course(script(*some, room=99), controller, SOUND) for some in ((1, 2, 3), (4,)))
    for _ in range(12):
        large.step()
        small.step()


def require_finished_rows(subject: ControllerSubject) -> None:
    """Play batches whose rows end early, and one in which they go on later, as within a hierarchy."""
    rows = (RowScript(1, room=3), RowScript(2, room=40, ends=0.3), RowScript(3, room=40))
    subject.course(Script(rows), judged=SOUND).play(60)
    subject.course(Script(rows, resumes=True), judged=SOUND).play(30)


def require_quiet_steps(subject: ControllerSubject) -> None:
    """Tell of steps in which nothing was drafted: for want of a guess, of room, or of a drafter."""
    subject.course(script(1, 2, room=30, silent=1.0), judged=("raising",)).play(8)
    subject.course(script(1, 2, room=1), judged=("raising",)).play(2)
    course = subject.course(script(1, 2, room=60), judged=("raising",)).play(4)
    for _ in range(4):
        course.step(ask=False)


def require_repeatable(subject: ControllerSubject) -> None:
    """Play the same batch with two controllers that were made alike, and compare."""
    for one in histories(subject):
        first, second = (subject.course(one).play(60) for _ in range(2))
        _compare(
            f"decoded {one} twice, each time with a controller made just now", answers(first), answers(second)
        )


def require_rows_apart(subject: ControllerSubject) -> None:
    """Play one row beside different others, and alone, and compare what was answered for it."""
    row = RowScript(subject.seed + 7, room=200)
    neighbours: tuple[list[RowScript], ...] = (
        [],
        [RowScript(8, room=200, gifted=1.0)],
        [RowScript(9, room=200, gifted=0.0), RowScript(10, room=5)],
    )
    alone, *beside = (subject.course(Script((row, *others))).play(STEPS) for others in neighbours)
    for course in beside:
        _compare(
            f"decoded a row alone, and in {course.script}", of_row(alone, 0), of_row(course, 0), "for this row"
        )


def require_batches_apart(subject: ControllerSubject) -> None:
    """Play a batch alone, and again while and after another one is decoded; compare what was answered."""
    own, other = script(1, 2, room=200), Script((RowScript(3, 300, gifted=1.0), RowScript(4, 300, gifted=0.0)))
    alone = answers(subject.course(own).play(40))
    controller: Any = subject.fresh()
    beside, busy = subject.course(own, controller), subject.course(other, controller)
    for _ in range(40):
        busy.step()
        beside.step()
    _compare(f"decoded {own} alone, and while another batch was decoded", alone, answers(beside))
    after = answers(subject.course(own, controller).play(40))
    _compare(f"decoded {own} with a new controller, and with one that had decoded before", alone, after)


def require_batches_freed(subject: ControllerSubject) -> None:
    """Play batches to their ends with one controller, let them go, and see whether their sessions are gone."""
    controller: Any = subject.fresh()
    for argmax in (False, True):
        course = subject.course(Script(script(1, 2, room=20).rows, argmax), controller).play(40)
        session, story = reference(course.session), course.failure("", "").did
        del course
        if is_kept(session):
            raise CheckFailure(
                f"{story}\nlet go of its session",
                "the session is still alive: something refers to it",
                "nothing does, so that batch after batch takes no more memory",
                "Keep on the controller the numbers that it learns from a batch, and not the session.",
            )


def require_nothing_changed(subject: ControllerSubject) -> None:
    """Play batches, and compare the settings with what they were; a course compares what it hands over."""
    controller: Any = subject.fresh()
    before, config = shown(controller.config), controller.config
    for one in histories(subject):
        subject.course(one, controller, HANDED).play(40)
    subject.course(script(1, 2, room=20), controller, HANDED).play(20)
    after = shown(controller.config)
    did = "decoded imagined batches, and compared the controller's settings before and after"
    if after != before:
        raise CheckFailure(did, f"now {after}", f"as before: {before}", "State belongs into the session.")
    if controller.config is not config:
        raise CheckFailure(did, "another object of the same values", "the settings that it was made with")


def require_global_state(subject: ControllerSubject) -> None:
    """Play a batch, and compare what the whole process shares."""
    before = shared_state()
    subject.course(script(1, 2, room=40)).play(20)
    subject.course(Script(script(1, 2).rows, argmax=True)).play(20)
    changed = changes(before)
    if changed:
        raise CheckFailure(
            "made controllers, and decoded imagined batches with them",
            f"changed: {', '.join(changed)}",
            "all as before",
            "For random numbers keep a generator of your own, seeded by the settings.",
        )


def shown(config: object) -> str:
    """Return settings as text, for comparison."""
    dump: Callable[[], object] | None = getattr(config, "model_dump", None)
    return repr(dump() if dump else vars(config) if hasattr(config, "__dict__") else config)


def _compare(did: str, expected: Sequence[object], got: Sequence[object], whose: str = "") -> None:
    if list(expected) == list(got):
        return
    places = zip(expected, got, strict=False)
    place = next((n for n, (left, right) in enumerate(places) if repr(left) != repr(right)), None)
    if place is None:
        if len(expected) == len(got):
            return  # NaN is unlike itself
        place = min(len(expected), len(got))
    raise CheckFailure(
        f"{did}; compared the answers{' ' + whose if whose else ''}",
        f"answer {place}: {_at(got, place)}",
        f"as the first time: {_at(expected, place)}",
        "An answer may depend on what was reported of its own row, and on nothing else." if whose else None,
    )


def _at(values: Sequence[object], place: int) -> str:
    return repr(values[place]) if place < len(values) else "none: it had ended"
