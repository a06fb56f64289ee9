import pytest

from specdec_core import DrafterConfig, PluginConfig, PluginSpec, TargetInfo
from specdec_core.interface import PluginError
from specdec_core.registry.registry import Registry
from specdec_core.registry.requirements import TargetFacts, check_requirements

ONE = """
    from specdec_core import DrafterConfig, PluginSpec, hookimpl

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "twin", "twin_parts:Twin", DrafterConfig)]
"""


def states(registry):
    """The plugins of the test, without the built-in models."""
    return {(r.distribution, r.name): (r.state, r.reason) for r in registry.records() if r.name != "builtin"}


def test_a_plugin_is_found_listed_and_created(toys):
    registry = Registry()
    record = next(r for r in registry.records() if r.name == "echo")
    assert (record.kind, record.distribution, record.version, record.state) == (
        "drafter",
        "specdec-toys",
        "1.0",
        "ready",
    )
    assert record.summary == "Always the same token."
    spec = registry.spec("drafter", "echo")
    drafter = registry.create("drafter", "echo", spec.config(token=4), TargetInfo(vocab_size=8))
    assert drafter.draft([1, 2], 3) == [4, 4, 4]


def test_an_unknown_name_gets_suggestions(toys):
    with pytest.raises(
        PluginError, match=r"unknown drafter 'ecko'\. Did you mean 'echo'.*Available: absent, echo, single"
    ):
        Registry().spec("drafter", "ecko")


def test_a_plugin_that_fails_to_import_is_listed_as_broken(toys):
    toys.install("dist-a", "broken_plugin", "import nowhere_to_be_found")
    registry = Registry()
    state, reason = states(registry)["dist-a", "broken_plugin"]
    assert state == "broken"
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in reason
    assert registry.names("drafter") == ["absent", "echo", "single"]
    with pytest.raises(PluginError, match=r"Not loaded: 'broken_plugin' of dist-a .*nowhere_to_be_found"):
        registry.spec("drafter", "broken")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("return 'echo'", "must return a list of PluginSpec, not str"),
        ("return [Spec('gamma', 'x', 'a:B', PluginConfig)]", "with kind 'gamma'; this hook registers 'drafter'"),
        ("return [Spec('drafter', 'a b', 'a:B', D)]", "'a b' may contain only letters, digits"),
        ("return [Spec('drafter', 'x', 'a:B', dict)]", "must be a subclass of DrafterConfig"),
        ("return [Spec('drafter', 'x', 'a:B', Named)]", "has a field 'name'"),
    ],
)
def test_a_faulty_hook_marks_its_plugin_as_broken(site, body, reason):
    source = f"""
        from specdec_core import DrafterConfig as D, PluginConfig, PluginSpec as Spec, hookimpl

        class Named(D):
            name: str = ""

        @hookimpl
        def specdec_drafters():
            {body}
    """
    site.install("dist-a", "wrong_plugin", source)
    state, said = states(Registry())["dist-a", "wrong_plugin"]
    assert state == "broken"
    assert reason in said


def test_a_misspelt_hook_is_reported(site):
    source = "from specdec_core import hookimpl\n@hookimpl\ndef specdec_drafterz(): return []\n"
    site.install("dist-a", "typo_plugin", source)
    state, reason = states(Registry())["dist-a", "typo_plugin"]
    assert state == "broken"
    assert "specdec_drafterz" in reason


SOLO = ONE.replace('"twin"', '"solo"').replace("DrafterConfig)", 'DrafterConfig, aliases=("twin",))')


@pytest.mark.parametrize(("name", "source"), [("twin", ONE), ("solo", SOLO)], ids=["names", "an alias"])
def test_two_plugins_of_one_name_are_an_error_when_the_name_is_used(toys, name, source):
    toys.install("dist-a", "twin_a", ONE)
    toys.install("dist-b", "twin_b", source, version="2.0")
    registry = Registry()
    both = states(registry)
    assert both["dist-a", "twin"][0] == both["dist-b", name][0] == "conflict"
    assert "'twin' is claimed by dist-a 1.0" in both["dist-b", name][1]
    assert "twin" not in registry.names("drafter")
    with pytest.raises(PluginError, match=r"'twin' is claimed by dist-a 1\.0 .* and dist-b 2\.0 .*Uninstall one"):
        registry.spec("drafter", "twin")
    other = "echo" if name == "twin" else name
    assert registry.spec("drafter", other).name == other


def test_a_plugin_answers_to_its_aliases(toys):
    toys.install("dist-a", "alias_plugin", SOLO.replace('("twin",)', '("lonely",)'))
    registry = Registry()
    assert registry.spec("drafter", "lonely") is registry.spec("drafter", "solo")
    assert "solo" in registry.names("drafter")
    assert "lonely" not in registry.names("drafter")
    assert [record.aliases for record in registry.records() if record.name == "solo"] == [("lonely",)]
    with pytest.raises(PluginError, match=r"Did you mean 'lonely'.*Available: absent, echo, single, solo\."):
        registry.spec("drafter", "lonley")


def test_the_allow_list_resolves_a_conflict(toys, monkeypatch):
    toys.install("dist-a", "twin_a", ONE)
    toys.install("dist-b", "twin_b", ONE)
    monkeypatch.setenv("SPECDEC_PLUGINS", "Dist_B")
    registry = Registry()
    assert registry.names("drafter") == ["twin"]
    assert states(registry)["dist-a", "twin_a"] == ("off", "not named in SPECDEC_PLUGINS")


def test_a_plugin_that_is_not_allowed_is_not_imported(site, monkeypatch):
    site.install("dist-a", "loud_plugin", "raise SystemExit('imported')")
    monkeypatch.setenv("SPECDEC_PLUGINS", "dist-b")
    registry = Registry()
    assert states(registry)["dist-a", "loud_plugin"][0] == "off"
    assert "no installed distribution" in states(registry)["dist-b", "dist-b"][1]


def test_a_class_that_cannot_be_imported_names_plugin_and_distribution(toys):
    registry = Registry()
    config = registry.spec("drafter", "absent").config()
    with pytest.raises(
        PluginError, match=r"drafter 'absent' of specdec-toys 1\.0 could not be imported from 'toy_nowh"
    ):
        registry.create("drafter", "absent", config, TargetInfo(vocab_size=8))


def test_a_class_that_raises_is_named(toys):
    toys.module("toy_parts", "class Fixed:\n    def __init__(self, config): raise OSError('no table')\n")
    with pytest.raises(
        PluginError, match=r"gamma controller 'fixed' of specdec-toys 1\.0 could not be set up: OSError: no table"
    ):
        Registry().create("gamma", "fixed", PluginConfig())


def test_two_plugins_that_claim_the_bare_value(toys):
    assert Registry().shorthand("gamma").name == "fixed"
    assert Registry().shorthand("drafter") is None
    rival = """
        from specdec_core import PluginConfig, PluginSpec, hookimpl

        class Rival(PluginConfig):
            most: int = 3

        @hookimpl
        def specdec_gamma_controllers():
            return [PluginSpec("gamma", "rival", "rival:Rival", Rival, shorthand="most")]
    """
    toys.install("dist-a", "rival_plugin", rival)
    with pytest.raises(PluginError, match=r"'fixed' \(specdec-toys 1\.0\) and 'rival' \(dist-a 1\.0\)"):
        Registry().shorthand("gamma")


@pytest.mark.parametrize(
    ("needs", "asked", "reason"),
    [
        ({"targets": "decoder-only"}, {"encoder_decoder": True}, "this target has an encoder"),
        ({"targets": "encoder-decoder"}, {"encoder_decoder": False}, "this target has no encoder"),
        ({"needs_tokenizer": True}, {"has_tokenizer": False}, "has no tokenizer"),
        ({"needs_hidden_states": True}, {"has_hidden_states": False}, "needs hidden states"),
        ({"needs_model": True}, {"has_model": False}, "is made of the target's own weights"),
    ],
)
def test_requirements_are_checked_with_the_reason(needs, asked, reason):
    config = type("WeakConfig", (DrafterConfig,), {"__module__": __name__, **needs})
    spec = PluginSpec("drafter", "weak", "a:B", config)
    check_requirements(spec, TargetFacts())
    with pytest.raises(PluginError, match=f"drafter 'weak' .*{reason}"):
        check_requirements(spec, TargetFacts(**asked))


@pytest.mark.parametrize("part", ["tokenizer", "features", "model"])
def test_what_a_target_has_is_told_apart(part):
    facts = TargetFacts.of(TargetInfo(8, **{part: object()}))
    assert facts == (False, part == "tokenizer", part == "features", part == "model")


TRAINERS = """
    from pathlib import Path
    from typing import Annotated, Any

    from pydantic import BaseModel, Field
    from specdec_core.interface import NestedDrafter, TrainerConfig
    from specdec_core import PluginConfig, PluginSpec, hookimpl

    class Inner(BaseModel):
        x: int = 1

    class Settings({base}):
        {field}

    @hookimpl
    def specdec_trainers():
        return [PluginSpec("trainer", "fit", "fit_parts:Fit", Settings)]
"""


def test_a_trainer_is_found_listed_and_created(site):
    site.install("dist-a", "fit_plugin", TRAINERS.format(base="TrainerConfig", field="pass"))
    site.module(
        "fit_parts",
        "from specdec_core.interface import Trainer\nclass Fit(Trainer):\n    def train(self, progress): pass",
    )
    registry = Registry()
    assert states(registry) == {("dist-a", "fit"): ("ready", "")}
    assert registry.names("trainer") == ["fit"]
    assert registry.names("drafter") == []
    config = registry.spec("trainer", "fit").config(output="x")
    assert registry.create("trainer", "fit", config).config is config
    with pytest.raises(PluginError, match=r"unknown trainer 'fits'\. Did you mean 'fit'\?"):
        registry.spec("trainer", "fits")
    site.module("other_parts", "class Fit:\n    def __init__(self, config): pass")
    site.module("fit_parts", "from other_parts import Fit")
    with pytest.raises(PluginError, match="makes a Fit, which is not a Trainer"):
        Registry().create("trainer", "fit", config)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("inner: Inner | None = None", "setting 'inner' is Inner"),
        ("quiet: int = 1", "setting 'quiet' would be the option --quiet, which is the command's own"),
    ],
)
def test_a_trainer_whose_settings_are_not_flat_is_broken(site, field, reason):
    site.install("dist-a", "fit_plugin", TRAINERS.format(base="TrainerConfig", field=field))
    state, said = states(Registry())["dist-a", "fit_plugin"]
    assert state == "broken"
    assert "specdec_trainers() returns 'fit', whose setting" in said
    assert reason in said
