"""Checks of gamma controllers: how many tokens they ask for, and what they may look at."""

from __future__ import annotations

from specdec_core.testing.checking import check
from specdec_core.testing.controller_subject import GammaSubject
from specdec_core.testing.instruments.courses import RowScript, Script
from specdec_core.testing.judging import controllers as shared
from specdec_core.testing.judging.controller_decoding import require_argmax, require_lossless


def _does_not_watch(subject: GammaSubject) -> str | None:
    return None if subject.watches else "its sessions do not watch confidence"


_form_is_wrong = shared.form_is_wrong("gamma-a-row")


@check("gamma-a-row", kind="gamma")
def gamma_a_row(subject: GammaSubject) -> None:
    """`gamma()` answers with one whole number, of the type int, for each row."""
    shared.require_form(subject)


@check("gamma-within-bounds", kind="gamma")
def gamma_within_bounds(subject: GammaSubject) -> None:
    """Gamma stays from 0 to `max_gamma`, however drafts fare for however long."""
    shared.require_bounds(subject)


@check("max-gamma", kind="gamma")
def max_gamma(subject: GammaSubject) -> None:
    """`max_gamma` is a whole number, the same before, while and after a batch is decoded."""
    controller = subject.fresh()
    before = controller.max_gamma
    for one in shared.histories(subject):
        course = subject.course(one, controller)
        for _ in range(40):
            course.step()
            if controller.max_gamma != before:
                raise course.failure(
                    f"max_gamma is now {controller.max_gamma}",
                    f"max_gamma as it was before: {before}",
                    "Buffers are made for max_gamma tokens when a batch begins: it is the most ever asked for.",
                )


@check("keep-drafting", kind="gamma", unless=_does_not_watch)
def keep_drafting(subject: GammaSubject) -> None:
    """`keep_drafting()` answers once for each row, also for those that drafted none (NaN)."""
    rows = (RowScript(1, room=300), RowScript(2, room=300, silent=0.5), RowScript(3, room=4))
    subject.course(Script(rows), judged=("watching",)).play(40)
    subject.course(Script(rows, argmax=True, resumes=True), judged=("watching",)).play(40)


@check("finished-rows", kind="gamma", unless=_form_is_wrong)
def finished_rows(subject: GammaSubject) -> None:
    """Rows that have ended are answered for, and may go on later, as within a hierarchy."""
    shared.require_finished_rows(subject)


@check("quiet-steps", kind="gamma")
def quiet_steps(subject: GammaSubject) -> None:
    """Reports of steps in which nothing was drafted are taken in."""
    shared.require_quiet_steps(subject)


@check("any-batch", kind="gamma", unless=_form_is_wrong)
def any_batch(subject: GammaSubject) -> None:
    """Batches of any size are decoded with one controller, one after another and at once."""
    shared.require_any_batch(subject)


@check("repeatable", kind="gamma")
def repeatable(subject: GammaSubject) -> None:
    """The same reports bring the same answers, from each controller that was made alike."""
    shared.require_repeatable(subject)


@check("nothing-changed", kind="gamma")
def nothing_changed(subject: GammaSubject) -> None:
    """The settings, the reports and the confidences that it is handed stay as they are."""
    shared.require_nothing_changed(subject)


@check("global-state-untouched", kind="gamma")
def global_state_untouched(subject: GammaSubject) -> None:
    """Random generators and settings that the whole process shares are left alone."""
    shared.require_global_state(subject)


@check("rows-apart", kind="gamma", required=False, unless=_form_is_wrong)
def rows_apart(subject: GammaSubject) -> None:
    """What is answered for a row does not depend on the rows beside it."""
    shared.require_rows_apart(subject)


@check("batches-apart", kind="gamma", required=False)
def batches_apart(subject: GammaSubject) -> None:
    """A batch is answered as by a new controller, whatever else is or was decoded."""
    shared.require_batches_apart(subject)


@check("batches-freed", kind="gamma")
def batches_freed(subject: GammaSubject) -> None:
    """What a session held is gone once its batch is done and let go: the controller does not keep it."""
    shared.require_batches_freed(subject)


@check("lossless", kind="gamma", unless=_form_is_wrong)
def lossless(subject: GammaSubject) -> None:
    """In the decoding loop, sampled texts have the target's distribution (chi-square)."""
    require_lossless(subject)


@check("argmax-equals-plain", kind="gamma", unless=_form_is_wrong)
def argmax_equals_plain(subject: GammaSubject) -> None:
    """By argmax, the tokens are those of plain decoding, in no more target calls."""
    require_argmax(subject)
