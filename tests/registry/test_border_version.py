"""Plugins that were built for another border are broken, with both versions named; the others are taken."""

import re

import pytest

import specdec_core
import specdec_drafters.plugin
import specdec_plugins.plugin
from specdec_core import BORDER_VERSION, PluginError, Registry
from specdec_core.border import version

SOURCE = """
    from specdec_core import PluginSpec, hookimpl

    {stated}

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "mine", "mine_parts:Mine")]
"""
FOREIGN = """
    from specdec_core import SomethingThatIsNotHere
    {stated}
"""


@pytest.fixture
def installed(site, monkeypatch):
    """Installs a plugin that states a border, with the core at border 2.3; returns its state and the reason."""
    monkeypatch.setattr(version, "BORDER_VERSION", "2.3")

    def install(stated, source=SOURCE):
        site.install("dist-a", "mine_plugin", source.format(stated=stated), version="4.5")
        (record,) = Registry().records()
        assert (record.distribution, record.version) == ("dist-a", "4.5")
        return record.state, record.reason

    return install


def test_the_version_is_one_that_a_plugin_may_state():
    assert re.fullmatch(r"\d+\.\d+", BORDER_VERSION)
    assert version.border_mismatch(BORDER_VERSION, "dist-a", "1") is None


def test_what_ships_states_it():
    assert specdec_drafters.plugin.SPECDEC_BORDER == BORDER_VERSION
    assert specdec_plugins.plugin.SPECDEC_BORDER == BORDER_VERSION


@pytest.mark.parametrize(
    "stated", ["", 'SPECDEC_BORDER = "2.3"', 'SPECDEC_BORDER = "2.0"', "SPECDEC_BORDER = None"]
)
def test_a_plugin_for_this_border_is_taken(installed, stated):
    assert installed(stated) == ("ready", "")


@pytest.mark.parametrize(
    ("stated", "to_do"),
    [
        ("3.0", "install a version of dist-a made for border 2, or upgrade specdec-core"),
        ("10.0", "install a version of dist-a made for border 2, or upgrade specdec-core"),
        ("1.2", "install a version of dist-a made for border 2, or install a specdec-core that has border 1"),
        ("1.9", "install a version of dist-a made for border 2, or install a specdec-core that has border 1"),
        ("2.4", "upgrade specdec-core"),
        ("2.10", "upgrade specdec-core"),
    ],
)
def test_a_plugin_for_another_border_is_broken_and_both_versions_are_named(installed, stated, to_do):
    assert installed(f'SPECDEC_BORDER = "{stated}"') == (
        "broken",
        f"dist-a is built for border {stated} of specdec, and this is border 2.3 "
        f"(specdec-core {specdec_core.__version__}): {to_do}",
    )


@pytest.mark.parametrize(
    "stated", ['"2"', "2.3", '"2.3.1"', '"v2.3"', '"2.x"', '""', "(2, 3)", '" 2.3"', '"2.3\\n"', '"٢.٣"']
)
def test_a_statement_that_cannot_be_read_says_how_it_should_be(installed, stated):
    state, reason = installed(f"SPECDEC_BORDER = {stated}")
    assert state == "broken"
    assert reason.startswith(f"SPECDEC_BORDER is {eval(stated)!r}; it must be the text MAJOR.MINOR of the border")
    assert reason.endswith('dist-a was built for, as in SPECDEC_BORDER = "2.3"')


def test_the_hooks_of_another_border_are_not_called(installed):
    source = SOURCE.replace("specdec_drafters()", "specdec_of_border_three()")
    assert installed('SPECDEC_BORDER = "3.0"', source)[1].startswith("dist-a is built for border 3.0")


OBJECT = """
    from specdec_core import PluginSpec, hookimpl

    {stated}

    class Plugin:
        {own}

        @hookimpl
        def specdec_drafters(self):
            return [PluginSpec("drafter", "mine", "mine_parts:Mine")]

    plugin = Plugin()
"""


@pytest.mark.parametrize(
    ("stated", "own", "built"),
    [
        ('SPECDEC_BORDER = "3.0"', "", "3.0"),
        ("", 'SPECDEC_BORDER = "3.0"', "3.0"),
        ('SPECDEC_BORDER = "2.3"', 'SPECDEC_BORDER = "3.0"', "3.0"),
        ('SPECDEC_BORDER = "3.0"', 'SPECDEC_BORDER = "2.3"', None),
        ('SPECDEC_BORDER = "2.3"', "", None),
        ("", "", None),
    ],
)
def test_an_object_that_is_announced_is_asked_first_and_then_its_module(site, monkeypatch, stated, own, built):
    monkeypatch.setattr(version, "BORDER_VERSION", "2.3")
    site.install("dist-a", "object_plugin", OBJECT.format(stated=stated, own=own))
    (announced,) = site.folder.glob("*.dist-info/entry_points.txt")
    announced.write_text("[specdec]\nmine = object_plugin:plugin\n")
    (record,) = Registry().records()
    assert record.state == ("broken" if built else "ready")
    assert record.reason.startswith(f"dist-a is built for border {built} of specdec" if built else "")


@pytest.mark.parametrize("stated", ['SPECDEC_BORDER = "3.0"', 'SPECDEC_BORDER: str = "3.0"'])
def test_a_plugin_that_fails_on_a_name_of_its_border_is_read_without_being_run(installed, stated):
    state, reason = installed(stated, FOREIGN)
    assert state == "broken"
    assert reason.startswith("dist-a is built for border 3.0 of specdec, and this is border 2.3")
    assert "(ImportError: cannot import name 'SomethingThatIsNotHere' from 'specdec_core'" in reason


def test_it_is_read_from_a_module_in_a_package_that_cannot_be_imported(site, monkeypatch):
    package = site.folder / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("import specdec_core.nowhere\n")
    (package / "plugin.py").write_text('SPECDEC_BORDER = "7.1"\n')
    site.install("dist-a", "mine.plugin", "")
    (record,) = Registry().records()
    assert record.reason.startswith("dist-a is built for border 7.1 of specdec")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (FOREIGN, r"this is border 2\.3 of specdec \(specdec-core "),
        ("import specdec_core.border.trees\n{stated}", r"this is border 2\.3 of specdec \(specdec-core "),
        ("import nowhere_to_be_found\n{stated}", "No module named 'nowhere_to_be_found'$"),
        ("x = (\n{stated}", "SyntaxError: "),
    ],
)
def test_a_plugin_that_fails_and_states_nothing(installed, source, said):
    state, reason = installed("", source)
    assert state == "broken"
    assert re.search(said, reason)
    assert ("border" in reason) == ("border" in said)


def test_a_plugin_that_fails_for_a_reason_of_its_own_says_that(installed):
    reason = installed('SPECDEC_BORDER = "2.3"', "import nowhere_to_be_found\n{stated}")[1]
    assert reason == "ModuleNotFoundError: No module named 'nowhere_to_be_found'"


def test_asking_what_it_states_may_fail_too(installed):
    source = "def __getattr__(name): raise OSError('not now')\n{stated}"
    assert installed("", source) == ("broken", "OSError: not now")


def test_a_name_that_it_would_have_brought_is_not_just_unknown(installed):
    installed('SPECDEC_BORDER = "3.0"')
    with pytest.raises(
        PluginError, match=r"unknown drafter 'mine'.*Not loaded: .*built for border 3\.0 of specdec"
    ):
        Registry().spec("drafter", "mine")
