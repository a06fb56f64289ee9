"""A plugin that calls sys.exit, or raises what is no Exception, is broken alone: nothing else ends."""

import pytest

from specdec_core import TargetInfo
from specdec_core.interface import ConfigError, PluginError
from specdec_core.registry import Registry
from specdec_core.registry.settings_models import plugin_settings

SPEC = """
    import sys
    from pydantic import field_serializer, field_validator
    from specdec_core import DrafterConfig, PluginSpec, hookimpl

    class Leaving(DrafterConfig):
        when: str = ""

        @field_validator("when")
        @classmethod
        def _check(cls, when):
            if when == "validated":
                sys.exit(0)
            if when == "interrupted":
                raise KeyboardInterrupt
            if when == "wrong":
                raise ValueError("not this one")
            return when

        @field_serializer("when")
        def _write(self, when):
            if when == "written":
                raise RuntimeError("no JSON of mine")
            return when

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "leaving", "{factory}", Leaving)]
"""
PARTS = """
    import sys
    from toy_parts import Echo

    class Leaving(Echo):
        def __init__(self, config, target):
            if config.when == "interrupted":
                raise KeyboardInterrupt
            sys.exit(0)
"""


@pytest.fixture
def leaving(toys):
    """Install a plugin that leaves, and return the registry."""

    def install(factory="leaving_parts:Leaving", parts=PARTS):
        toys.module("leaving_parts", parts)
        toys.install("dist-leaving", "leaving_plugin", SPEC.replace("{factory}", factory))
        return Registry()

    return install


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("import asyncio\nraise asyncio.CancelledError\n", "CancelledError"),
        ("from specdec_core import hookimpl\n@hookimpl\ndef specdec_drafters(): exit()\n", "SystemExit"),
    ],
)
def test_an_entry_point_that_leaves_is_broken_and_the_others_are_there(toys, source, reason):
    toys.install("dist-a", "leaving_plugin", source)
    registry = Registry()
    (broken,) = [record for record in registry.records() if record.state == "broken"]
    assert broken.distribution == "dist-a"
    assert broken.reason.startswith(reason)
    assert registry.names("drafter") == ["absent", "echo", "single"]


def test_a_requirement_that_cannot_be_read_breaks_its_plugin_alone(toys):
    toys.install("dist-a", "odd_plugin", "pass\n", requires="specdec-core ~~ what?")
    (broken,) = [record for record in Registry().records() if record.state == "broken"]
    assert "InvalidRequirement" in broken.reason


def test_ctrl_c_while_plugins_are_loaded_is_no_plugin_failure(toys):
    toys.install("dist-a", "stopped_plugin", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        Registry()


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("validated", "drafter 'leaving' of dist-leaving 1.0 could not check its settings: SystemExit: 0"),
        ("wrong", "not this one"),
        ("written", "no JSON of mine"),
    ],
)
def test_settings_that_leave_are_refused_with_the_name_of_the_plugin(leaving, when, said):
    with pytest.raises(ConfigError) as caught:
        plugin_settings(leaving(), "drafter", {"name": "leaving", "when": when})
    assert said in str(caught.value)
    assert str(caught.value).startswith("drafter")


def test_ctrl_c_in_a_validator_is_no_problem_of_the_settings(leaving):
    with pytest.raises(KeyboardInterrupt):
        plugin_settings(leaving(), "drafter", {"name": "leaving", "when": "interrupted"})


def test_a_factory_that_leaves_is_a_plugin_error(leaving):
    registry = leaving()
    config = plugin_settings(registry, "drafter", {"name": "leaving", "when": "made"})
    with pytest.raises(PluginError, match="could not be set up: SystemExit: 0"):
        registry.create("drafter", "leaving", config, TargetInfo(vocab_size=8))


def test_a_module_that_leaves_is_a_plugin_error(leaving):
    registry = leaving(parts="import sys\nsys.exit(3)\n")
    config = plugin_settings(registry, "drafter", "leaving")
    with pytest.raises(PluginError, match=r"of dist-leaving 1.0 could not be imported from .*: SystemExit: 3"):
        registry.create("drafter", "leaving", config, TargetInfo(vocab_size=8))


def test_ctrl_c_in_a_factory_is_no_plugin_error(leaving):
    registry = leaving()
    config = registry.spec("drafter", "leaving").config.model_construct(when="interrupted")
    with pytest.raises(KeyboardInterrupt):
        registry.create("drafter", "leaving", config, TargetInfo(vocab_size=8))
