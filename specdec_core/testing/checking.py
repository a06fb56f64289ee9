"""What a check is, how one is written, and what it says when it fails. Imports no torch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from specdec_core.border import PluginKind
from specdec_core.errors import ConfigError, unknown_name

Unfit: TypeAlias = Callable[[Any], str | None]
"""Says why a check does not apply to a subject; None where it does."""

Function = TypeVar("Function", bound=Callable[[Any], None])

_MODULES: dict[PluginKind, tuple[str, ...]] = {
    "drafter": (
        "specdec_core.testing.judging.announcements",
        "specdec_core.testing.judging.drafter_proposals",
        "specdec_core.testing.judging.drafter_commits",
        "specdec_core.testing.judging.drafter_manners",
        "specdec_core.testing.judging.drafter_decoding",
    ),
    "gamma": ("specdec_core.testing.judging.announcements", "specdec_core.testing.judging.gamma"),
    "lenience": ("specdec_core.testing.judging.announcements", "specdec_core.testing.judging.lenience"),
}
"""Where the checks of each kind stand, in the order in which they run."""

_CHECKS: dict[PluginKind, dict[str, Check]] = {kind: {} for kind in _MODULES}


class CheckFailure(AssertionError):  # noqa: N818  (it is the plugin that failed)
    """A plugin does not do what the border asks of it.

    Args:
        did: What the check did.
        got: What came back.
        expected: What should have come back.
        hint: What usually mends it.
    """

    def __init__(self, did: str, got: str, expected: str, hint: str | None = None) -> None:
        self.did, self.got, self.expected, self.hint = did, got, expected, hint
        lines = [("did", did), ("got", got), ("expected", expected), *([("hint", hint)] if hint else [])]
        super().__init__("\n".join(_paragraph(word, text) for word, text in lines))


def _paragraph(word: str, text: str) -> str:
    """Return a line that begins with a word; further lines of the text stand below its first."""
    return f"{word + ':':<10}" + text.strip().replace("\n", "\n" + " " * 10)


@dataclass(frozen=True)
class Check:
    """One small named check.

    Attributes:
        name: In kebab case; what `pytest -k` and `expected_failures` take.
        kind: What kind of plugin it judges.
        summary: One line on what it proves.
        run: Takes the subject; raises `CheckFailure`.
        required: Whether a plugin must pass it. Others are run and reported, and count where the author says so.
        unfit: Says why it does not apply to a subject, by what that declared; None where it applies.
    """

    name: str
    kind: PluginKind
    summary: str
    run: Callable[[Any], None]
    required: bool
    unfit: Unfit


def check(
    name: str, *, kind: PluginKind, required: bool = True, unless: Unfit | Sequence[Unfit] = ()
) -> Callable[[Function], Function]:
    """Make a check of a function that takes a subject. The first line of its docstring is the summary.

    Args:
        name: In kebab case, not taken by another check of the kind.
        kind: What kind of plugin it judges.
        required: Whether a plugin must pass it.
        unless: Say why it does not apply to a subject; the first that has a reason is heard.
    """
    reasons = (unless,) if callable(unless) else tuple(unless)

    def unfit(subject: Any) -> str | None:
        return next(filter(None, (reason(subject) for reason in reasons)), None)

    def register(function: Function) -> Function:
        known = _CHECKS[kind].get(name)
        if known is not None and known.run.__module__ != function.__module__:
            raise ValueError(f"two {kind} checks are named {name!r}: in {known.run.__module__} and here.")
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        if not summary:
            raise ValueError(f"{kind} check {name!r} has no docstring; its first line is the summary.")
        _CHECKS[kind][name] = Check(name, kind, summary, function, required, unfit)
        return function

    return register


def checks(kind: PluginKind) -> tuple[Check, ...]:
    """Return the checks of a kind of plugin, in the order in which they run. Imports torch.

    Args:
        kind: `drafter`, `gamma` or `lenience`.

    Raises:
        ConfigError: There are no checks for this kind.
    """
    if kind not in _MODULES:
        raise ConfigError(unknown_name("kind of plugin with checks", kind, _MODULES))
    modules = _MODULES[kind]
    for module in modules:
        importlib.import_module(module)
    found = _CHECKS[kind].values()
    order = {module: place for place, module in enumerate(modules)}
    return tuple(sorted(found, key=lambda one: order.get(one.run.__module__, len(modules))))


def require_known(kind: PluginKind, names: Iterable[str], where: str) -> None:
    """Refuse names of checks that do not exist.

    Args:
        kind: What kind of plugin is judged.
        names: The names as they were written.
        where: Where they were written.

    Raises:
        ConfigError: With the near misses and all there is.
    """
    available = [one.name for one in checks(kind)]
    for name in names:
        if name not in available:
            raise ConfigError(f"{where}: " + unknown_name(f"{kind} check", name, available))
