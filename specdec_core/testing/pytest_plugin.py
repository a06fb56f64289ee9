"""The pytest plugin: `pytest --specdec drafter:recent` checks an installed plugin without a test file.

Importing it imports no torch. It does nothing in sessions without the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from specdec_core._version import installed_version
from specdec_core.interface.errors import SpecdecError
from specdec_core.testing.limits import TIMEOUT
from specdec_core.testing.registration import Check, checks_for, require_known
from specdec_core.testing.selection import parse_plugin, parse_settings
from specdec_core.testing.subject import Subject
from specdec_core.testing.subjects import named


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("specdec", "specdec: conformance of plugins")
    group.addoption(
        "--specdec",
        action="append",
        default=[],
        metavar="KIND:NAME",
        help="Check an installed plugin, e.g. drafter:recent. Other tests run only if they are named.",
    )
    group.addoption(
        "--specdec-settings",
        default="",
        metavar="YAML",
        help="Its settings as in a study, e.g. '{window: 8}'.",
    )
    group.addoption(
        "--specdec-require",
        action="append",
        default=[],
        metavar="CHECK",
        help="An optional check that counts; can be repeated.",
    )
    group.addoption(
        "--specdec-timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help="Stop a check that takes longer; 0 for no limit. The limits of pytest-timeout apply as well.",
    )
    group.addoption("--specdec-device", default="cpu", metavar="DEVICE", help="Device of the kit's targets.")


def pytest_configure(config: pytest.Config) -> None:
    """Collect no test files unless some are named."""
    if config.getoption("--specdec") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report the version of specdec when plugins are checked."""
    if not config.getoption("--specdec"):
        return None
    return f"specdec: {installed_version()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each check of each named plugin."""
    try:
        for plugin in config.getoption("--specdec"):
            subject = _subject(plugin, config)
            collector = _Conformance.from_parent(session, name=plugin, nodeid=plugin, subject=subject)
            items.extend(session.genitems(collector))
    except SpecdecError as error:
        raise pytest.UsageError(str(error)) from None


def _subject(plugin: str, config: pytest.Config) -> Subject:
    kind, name = parse_plugin(plugin, "--specdec")
    settings = parse_settings(config.getoption("--specdec-settings"), "--specdec-settings")
    subject = named(kind, name, settings, device=config.getoption("--specdec-device"))
    require_known(kind, config.getoption("--specdec-require"), "--specdec-require")
    return subject


class _Conformance(pytest.Collector):
    """The checks of one plugin."""

    def __init__(self, *, subject: Subject, **node: Any) -> None:
        super().__init__(**node)
        self.subject = subject

    def collect(self) -> Iterator[pytest.Item]:
        require = self.config.getoption("--specdec-require")
        for check in checks_for(self.subject.kind):
            required = check.required or check.name in require
            yield cast(
                "pytest.Item",
                _CheckItem.from_parent(
                    self, name=check.name, check=check, subject=self.subject, required=required
                ),
            )


class _CheckItem(pytest.Item):
    """One check of one plugin."""

    def __init__(self, *, check: Check, subject: Subject, required: bool, **node: Any) -> None:
        super().__init__(**node)
        self._check, self._subject, self._required = check, subject, required

    def runtest(self) -> None:
        from specdec_core.testing.kits import report_to_pytest

        timeout = self.config.getoption("--specdec-timeout")
        report_to_pytest(self._check, self._subject, None, required=self._required, timeout=timeout)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.nodeid
