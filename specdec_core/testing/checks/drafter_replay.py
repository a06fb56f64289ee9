"""Checks of a drafter along recorded texts: a replay expects what live decoding counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from specdec_core.interface.errors import PluginError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.text_acceptance import TextAcceptance
from specdec_core.offline.replay.text_session import OwnTokensError
from specdec_core.testing.causes import what_failed
from specdec_core.testing.harness.replaying import (
    COUNTS,
    LiveAndReplayed,
    decode_and_replay,
    memory_record,
    recorded_texts,
)
from specdec_core.testing.harness.tiny_target import PROMPT, TinyTarget
from specdec_core.testing.registration import CheckFailure, check
from specdec_core.testing.subject import DrafterSubject

GREEDY, SAMPLED = SamplingSettings(temperature=0), SamplingSettings()
LENGTH = 7
"""Tokens of each text."""
_TEXTS = ((2, 3, 5, 2, 3, 4, 0), (5, 2, 2, 3), (3, 5, 2, 4, 2, 3, 5))
_LIMIT = 5.0
"""Means differ if they are so many standard errors apart: once in two million times by chance."""
_TOLERANCE = 1e-4


def draws_itself(subject: DrafterSubject) -> str | None:
    """Return why a drafter cannot be replayed: q of the text's tokens is not known of one that draws by itself."""
    for target in subject.targets:
        try:
            _acceptance(subject, target, SAMPLED)
        except OwnTokensError:
            return "it draws its tokens itself, not with the request's methods, so it cannot be replayed"
        except (PluginError, CheckFailure):
            return None  # for the check to report
    return None


@check("replay-equals-live", kind="drafter", skip_if=draws_itself)
def replay_equals_live(subject: DrafterSubject) -> None:
    """A replay expects what live decoding counts.

    A replay of texts expects what decoding them live counts, greedy and sampled (z-test of means).
    """
    count = min(subject.times(200, 50, "texts"), 25 * 100)
    for target in subject.targets:
        both = _decoded(subject, target, GREEDY, min(count, 4))
        if not both.certain:
            _decoded(subject, target, GREEDY, count)
        _decoded(subject, target, SAMPLED, count)


def _decoded(
    subject: DrafterSubject, target: TinyTarget, sampling: SamplingSettings, count: int
) -> LiveAndReplayed:
    """Decode texts and replay the drafter on them.

    Raises:
        CheckFailure: The drafter fails, or counts differ by more than chance, where there are enough texts.
    """
    did = f"decoded and replayed {count} texts at temperature {sampling.temperature:g} on {target}"
    drafter, batch = subject.drafter(target), min(100, count)
    if drafter.remembers:
        batch, count = 1, min(count, 25)  # texts of a batch do not learn from each other
        drafter.reset()
    with _replaying(did):
        both = decode_and_replay(
            target.loaded,
            drafter,
            sampling,
            PROMPT,
            gamma=2,
            max_gamma=3,
            count=count,
            length=LENGTH,
            batch=batch,
            seed=subject.seed,
        )
    distance, column = both.farthest()
    if distance > _LIMIT and (both.certain or count > 4):
        live, expected = both.live[:, column].mean(), both.replayed[:, column].mean()
        raise CheckFailure(
            f"{did}, with gamma 2, after drafts of 3 tokens were replayed",
            f"{live:.3f} {COUNTS[column]} of a text live, where {expected:.3f} were expected",
            f"the same on average, within {_LIMIT:g} standard errors (they are {distance:.1f} apart)",
            "Drafts depend on something else than the committed tokens; or a small budget gives another draft "
            "than the beginning of the one for a large budget: then set `drafts_by_budget = True`.",
        )
    return both


def not_autoregressive(subject: DrafterSubject) -> str | None:
    """Return why a check of `autoregressive` does not apply."""
    if any(subject.drafter(target).autoregressive for target in subject.targets):
        return None
    return "it does not declare `autoregressive`"


@check("autoregressive-as-declared", kind="drafter", skip_if=not_autoregressive)
def autoregressive_as_declared(subject: DrafterSubject) -> None:
    """If declared `autoregressive`, q does not depend on where a draft began.

    If it declares `autoregressive`, its q does not depend on where a draft began, nor its drafts' length.
    """
    for target in subject.targets:
        for sampling in (SAMPLED, GREEDY):
            how = f"at temperature {sampling.temperature:g} on {target}"
            did = f"asked it once per text, and at every position, {how}"
            with _replaying(did):
                once, always = (
                    _acceptance(subject, target, sampling, autoregressive=way) for way in (True, False)
                )
            for text, (one, other) in enumerate(zip(once, always, strict=True)):
                _require_equal(did, text, one, other)


def _require_equal(did: str, text: int, once: TextAcceptance, always: TextAcceptance) -> None:
    hint = "Set `autoregressive = False` if q depends on where the draft began."
    for position in range(len(once)):
        offered = int(once.offered[position]), int(always.offered[position])
        if offered[0] != offered[1]:
            got, expected = (
                f"a draft of {offered[1]} tokens at position {position} of text {text}",
                f"{offered[0]}",
            )
            raise CheckFailure(did, got, f"{expected}, as many as there is room for", hint)
        count = min(offered[0], len(once) - position)
        one, other = (np.cumprod(acceptance.accept()[position, :count]) for acceptance in (once, always))
        if count and np.abs(one - other).max() > _TOLERANCE:
            index = int(np.abs(one - other).argmax())
            raise CheckFailure(
                did,
                f"a draft from position {position} of text {text} is accepted up to token {index} with "
                f"probability {other[index]:.4f}",
                f"{one[index]:.4f}, as in drafts that began earlier",
                hint,
            )


def _acceptance(
    subject: DrafterSubject, target: TinyTarget, sampling: SamplingSettings, *, autoregressive: bool = False
) -> list[TextAcceptance]:
    """Return the drafter's acceptance along some texts."""
    # Greedy texts are certain, whatever they are.
    texts = recorded_texts(target.loaded, PROMPT, _TEXTS, SAMPLED, LENGTH)
    record, part = memory_record(target.loaded, texts, sampling, GenerationSettings(max_new_tokens=LENGTH))
    return list(
        DrafterReplay(
            record,
            part,
            subject.drafter(target),
            max_gamma=3,
            batch_size=len(texts),
            target=target.loaded,
            autoregressive=autoregressive,
        ).acceptance()
    )


@contextmanager
def _replaying(did: str) -> Iterator[None]:
    """Report what was done when a drafter fails."""
    try:
        yield
    except PluginError as error:
        raise CheckFailure(did, what_failed(error), "replaying without a failure") from error
