"""Checks of lenience controllers: what l may be, and what it may depend on."""

from __future__ import annotations

from specdec_core.testing.checking import check
from specdec_core.testing.controller_subject import LenienceSubject
from specdec_core.testing.instruments.courses import Script, script
from specdec_core.testing.judging import controllers as shared
from specdec_core.testing.judging.controller_decoding import require_argmax_rule, require_bound, require_lossless


def _promises_nothing(subject: LenienceSubject) -> str | None:
    return None if subject.lossless else "its settings do not say that it is lossless"


_form_is_wrong = shared.form_is_wrong("lenience-a-row")


@check("lenience-a-row", kind="lenience")
def lenience_a_row(subject: LenienceSubject) -> None:
    """`lenience()` answers for each row with a number, or with one for each of some places."""
    shared.require_form(subject)


@check("lenience-within-bounds", kind="lenience")
def lenience_within_bounds(subject: LenienceSubject) -> None:
    """Lenience stays in (0, 1], however drafts fare for however long."""
    shared.require_bounds(subject)


@check("finished-rows", kind="lenience", unless=_form_is_wrong)
def finished_rows(subject: LenienceSubject) -> None:
    """Rows that have ended are answered for, too."""
    shared.require_finished_rows(subject)


@check("quiet-steps", kind="lenience")
def quiet_steps(subject: LenienceSubject) -> None:
    """Reports of steps in which nothing was judged, and l was not asked for, are taken in."""
    shared.require_quiet_steps(subject)
    subject.course(Script(script(1, 2).rows, max_gamma=0), judged=("raising",)).play(4)


@check("any-batch", kind="lenience", unless=_form_is_wrong)
def any_batch(subject: LenienceSubject) -> None:
    """Batches of any size are decoded with one controller, one after another and at once."""
    shared.require_any_batch(subject)


@check("repeatable", kind="lenience")
def repeatable(subject: LenienceSubject) -> None:
    """The same reports bring the same answers, from each controller that was made alike."""
    shared.require_repeatable(subject)


@check("nothing-changed", kind="lenience")
def nothing_changed(subject: LenienceSubject) -> None:
    """The settings and the reports that it is handed stay as they are."""
    shared.require_nothing_changed(subject)


@check("global-state-untouched", kind="lenience")
def global_state_untouched(subject: LenienceSubject) -> None:
    """Random generators and settings that the whole process shares are left alone."""
    shared.require_global_state(subject)


@check("rows-apart", kind="lenience", unless=_form_is_wrong)
def rows_apart(subject: LenienceSubject) -> None:
    """What is answered for a row does not depend on the rows beside it."""
    shared.require_rows_apart(subject)


@check("batches-apart", kind="lenience", required=False)
def batches_apart(subject: LenienceSubject) -> None:
    """A batch is answered as by a new controller, whatever else is or was decoded."""
    shared.require_batches_apart(subject)


@check("batches-freed", kind="lenience")
def batches_freed(subject: LenienceSubject) -> None:
    """What a session held is gone once its batch is done and let go: the controller does not keep it."""
    shared.require_batches_freed(subject)


@check("lossless-as-promised", kind="lenience", unless=(_promises_nothing, _form_is_wrong))
def lossless_as_promised(subject: LenienceSubject) -> None:
    """Where the settings say that it is lossless, l is always 1, and texts have the target's distribution."""
    for one in shared.histories(subject):
        course = subject.course(one)
        for _ in range(shared.STEPS):
            course.step()
            answer = course.leniences[-1]
            if answer is not None and any(value != 1 for row in answer for value in row):
                raise course.failure(
                    f"l = {answer}", "l = 1 for every row and place, as `config.lossless` promises"
                )
    require_lossless(subject)


@check("bound", kind="lenience", unless=_form_is_wrong)
def bound(subject: LenienceSubject) -> None:
    """At temperature 1, no token is more probable than p(x) / l, with l as it is answered without a draft."""
    require_bound(subject)


@check("argmax-rule", kind="lenience", unless=_form_is_wrong)
def argmax_rule(subject: LenienceSubject) -> None:
    """By argmax, a draft token is kept only where p(x) >= l max p, and l is asked for once a draft."""
    require_argmax_rule(subject)
