"""Checks: registering one, and its report when it fails. Imports no torch."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from specdec_core.interface.errors import ConfigError, unknown_name
from specdec_core.interface.spec import PluginKind

TIMEOUT = 60.0
"""Seconds that a check may compute."""

SkipReason: TypeAlias = Callable[[Any], str | None]
"""Returns why a check does not apply to a subject; None where it applies."""

Function = TypeVar("Function", bound=Callable[[Any], None])

_CONTROLLERS = (
    "specdec_core.testing.checks.plugin_spec",
    "specdec_core.testing.checks.controller_answers",
    "specdec_core.testing.checks.controller_decoding",
)
_MODULES: dict[PluginKind, tuple[str, ...]] = {
    "drafter": (
        "specdec_core.testing.checks.plugin_spec",
        "specdec_core.testing.checks.drafter_proposals",
        "specdec_core.testing.checks.drafter_state",
        "specdec_core.testing.checks.drafter_isolation",
        "specdec_core.testing.checks.drafter_memory",
        "specdec_core.testing.checks.drafter_decoding",
        "specdec_core.testing.checks.drafter_replay",
    ),
    "gamma": _CONTROLLERS,
    "lenience": _CONTROLLERS,
    "rule": ("specdec_core.testing.checks.plugin_spec", "specdec_core.testing.checks.rule_answers"),
}
"""The modules with the checks of each kind, in the order in which they run."""

KINDS = tuple(_MODULES)
"""The kinds of plugins that have checks."""

_CHECKS: dict[PluginKind, dict[str, Check]] = {kind: {} for kind in _MODULES}
_KIT = Path(__file__).parent
_CORE = _KIT.parent


class CheckFailure(AssertionError):  # noqa: N818  (it is the plugin that failed)
    """A plugin breaks a rule of the plugin interface.

    Args:
        did: What the check did.
        got: What came back.
        expected: What should have come back.
        hint: What usually fixes it.
        cause: Equal for failures with the same cause; by default they are compared by what was expected.
    """

    def __init__(
        self, did: str, got: str, expected: str, hint: str | None = None, *, cause: str | None = None
    ) -> None:
        super().__init__(did, got, expected, hint)
        self.did, self.got, self.expected, self.hint, self.cause = did, got, expected, hint, cause

    def __str__(self) -> str:
        parts = [("did", self.did), ("got", self.got), ("expected", self.expected)]
        if self.hint:
            parts.append(("hint", self.hint))
        return "\n".join(_paragraph(word, text) for word, text in parts)


def _paragraph(word: str, text: str) -> str:
    """Return a line that begins with a word; further lines of the text are indented."""
    return f"{word + ':':<10}" + text.strip().replace("\n", "\n" + " " * 10)


def format_error(error: BaseException) -> str:
    """Return an exception with its traceback, causes first, without the frames of the kit.

    Where there are frames of the plugin, those of the core are left out, too.
    """
    formatted = traceback.TracebackException.from_exception(error)
    chain = [formatted]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    is_own = any(not Path(frame.filename).is_relative_to(_CORE) for one in chain for frame in one.stack)
    hidden = _CORE if is_own else _KIT
    for one in chain:
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not Path(frame.filename).is_relative_to(hidden)]
        )
    return "".join(formatted.format()).strip()


@dataclass(frozen=True)
class Check:
    """One small named check.

    Attributes:
        name: Name in kebab case, for `pytest -k` and `expected_failures`.
        kind: The kind of plugin that it checks.
        summary: What it proves, in one line.
        run: Takes the subject; raises `CheckFailure`.
        required: Whether a plugin must pass it. Optional checks run and are reported, and count on request.
        skip_reason: Returns why it does not apply to a subject; None where it applies.
        purpose: What an optional check is for.
        slow: Whether quick runs leave it out.
    """

    name: str
    kind: PluginKind
    summary: str
    run: Callable[[Any], None]
    required: bool
    skip_reason: SkipReason
    purpose: str = ""
    slow: bool = False


def check(
    name: str,
    *,
    kind: PluginKind | Sequence[PluginKind],
    required: bool | Sequence[PluginKind] = True,
    skip_if: SkipReason | Sequence[SkipReason] = (),
    purpose: str = "",
    slow: bool = False,
) -> Callable[[Function], Function]:
    """Register a function that takes a subject as a check. The first line of its docstring is the summary.

    Args:
        name: Name in kebab case, unique for the kind.
        kind: The kind of plugin that it checks, or several.
        required: Whether a plugin must pass it; or the kinds that must.
        skip_if: Returns why it does not apply to a subject. The first of several with a reason decides.
        purpose: What it is for, where it is optional: who needs a plugin that passes it.
        slow: Whether quick runs leave it out.
    """
    reasons = (skip_if,) if callable(skip_if) else tuple(skip_if)

    def skip_reason(subject: Any) -> str | None:
        return next(filter(None, (reason(subject) for reason in reasons)), None)

    def register(function: Function) -> Function:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        for one in (kind,) if isinstance(kind, str) else kind:
            known = _CHECKS[one].get(name)
            if known is not None and known.run.__module__ != function.__module__:
                raise ValueError(
                    f"two {one} checks are named {name!r}: one in {known.run.__module__}, one in "
                    f"{function.__module__}. Rename one of them."
                )
            if not summary:
                raise ValueError(
                    f"{one} check {name!r} has no docstring. Write one: its first line is the summary."
                )
            counts = required if isinstance(required, bool) else one in required
            if not counts and not purpose:
                raise ValueError(f"{one} check {name!r} is optional. Say in `purpose` what it is for.")
            _CHECKS[one][name] = Check(
                name, one, summary, function, counts, skip_reason, "" if counts else purpose, slow
            )
        return function

    return register


def checks_for(kind: PluginKind) -> tuple[Check, ...]:
    """Return the checks of a kind of plugin, in the order in which they run. Imports torch.

    Args:
        kind: `drafter`, `gamma`, `lenience` or `rule`.

    Raises:
        ConfigError: No checks exist for this kind.
    """
    if kind not in _MODULES:
        raise ConfigError(unknown_name("kind of plugin with checks", kind, _MODULES))
    modules = _MODULES[kind]
    for module in modules:
        importlib.import_module(module)
    order = {module: index for index, module in enumerate(modules)}
    return tuple(sorted(_CHECKS[kind].values(), key=lambda one: order.get(one.run.__module__, len(modules))))


def require_known(kind: PluginKind, names: Iterable[str], where: str) -> None:
    """Reject names of checks that do not exist.

    Args:
        kind: The kind of plugin.
        names: Names of checks.
        where: Where they come from, for messages.

    Raises:
        ConfigError: A name is unknown; the message lists near misses and all names.
    """
    available = [one.name for one in checks_for(kind)]
    for name in names:
        if name not in available:
            raise ConfigError(f"{where}: " + unknown_name(f"{kind} check", name, available))
