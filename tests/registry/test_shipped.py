"""Files that installed distributions ship, as NAME:ITEM."""

import json
import shutil
from pathlib import Path

import pytest

from specdec_core.interface.errors import ConfigError, ModelError
from specdec_core.models import model_folder
from specdec_core.offline.record.store import read_record
from specdec_core.registry.registry import Registry, default_registry
from specdec_core.registry.shipped import drafter_settings, is_shipped, shipped_file
from specdec_core.study import load_study
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig

SOURCE = """
    from pathlib import Path
    from specdec_core import ModelsSpec, hookimpl

    @hookimpl
    def specdec_models():
        return [{specs}]
"""
TOYS = 'ModelsSpec("toys", Path(__file__).parent / "toy_files", "Toys.")'


def offer(site, *specs, distribution="specdec-toys", module="toy_models"):
    site.install(distribution, module, SOURCE.format(specs=", ".join(specs)))


@pytest.fixture
def files(site):
    """Install a collection `toys` and return its folder."""
    folder = site.folder / "toy_files"
    (folder / "deep" / "tiny").mkdir(parents=True)
    (folder / "deep" / "tiny" / "generation_config.json").write_text("{}")
    (folder / "tables").mkdir()
    (folder / "tables" / "pairs.arpa").write_text("")
    (folder / "own.jsonl").write_text('{"prompt": "a toy"}\n')
    offer(site, TOYS)
    return folder


def test_any_distribution_can_ship_files_under_a_name(files):
    assert model_folder("toys:tiny") == files / "deep" / "tiny"
    assert shipped_file("toys:pairs", "n-gram model", "*.arpa") == files / "tables" / "pairs.arpa"
    assert read_prompts(PromptsConfig(file="toys:own"), Path())[0].text == "a toy"
    shutil.copytree(shipped_file("builtin:code", "record", "record.json").parent, files / "said")
    assert len(read_record("toys:said").parts) == len(read_record("builtin:code").parts)


def test_an_item_that_is_not_there_is_named_with_those_that_are(files):
    with pytest.raises(ModelError, match=r"unknown model 'toys:tinny'. Did you mean 'toys:tiny'\?") as error:
        model_folder("toys:tinny")
    assert "builtin:" not in str(error.value)
    with pytest.raises(ModelError, match=r"unknown record 'toys:tiny'. Available: none"):
        read_record("toys:tiny")


def test_of_two_items_with_one_name_neither_is_taken(files):
    shutil.copytree(files / "deep", files / "other")
    with pytest.raises(
        ModelError, match=r"deep/tiny/generation_config.json and other/tiny/generation_config.json"
    ):
        model_folder("toys:tiny")


@pytest.mark.parametrize("path", ["owner/name", "./toys:tiny", r"C:\models\tiny", "https://hub.co/toys", ":tiny"])
def test_what_is_no_reference_is_left_to_others(files, path):
    assert not is_shipped(path)
    assert shipped_file(path, "model", "generation_config.json") is None


@pytest.mark.parametrize(("key", "value"), [("target", "bultin:target"), ("prompts", "{file: bultin:heldout}")])
def test_a_misspelt_reference_is_seen_before_anything_is_loaded(tmp_path, key, value):
    study = tmp_path / "study.yaml"
    study.write_text("target: builtin:target\nprompts: [a]\nruns: [{drafter: random, gamma: 2}]\n")
    with pytest.raises(ConfigError, match=r"unknown collection of models 'bultin'. Did you mean 'builtin'"):
        load_study(study, [f"{key}={value}"])


def test_a_collection_that_is_excluded_is_named_with_the_reason(files, monkeypatch):
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    default_registry.cache_clear()
    assert model_folder("builtin:target")
    with pytest.raises(ModelError, match=r"'toy_models' of specdec-toys \(not named in SPECDEC_PLUGINS\)"):
        model_folder("toys:tiny")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ('ModelsSpec("toys", Path(__file__).parent / "nowhere")', "must be the absolute Path of a folder"),
        ('ModelsSpec("to:ys", Path(__file__).parent)', "may contain only letters"),
        ('"toys"', r"must return a list of ModelsSpec, but it holds a str"),
    ],
)
def test_a_collection_that_cannot_work_is_listed_as_broken(site, spec, reason):
    offer(site, spec)
    (record,) = [one for one in Registry().records() if one.distribution == "specdec-toys"]
    assert record.state == "broken"
    assert reason in record.reason


def test_settings_of_drafters_come_from_every_collection(files):
    hub = {"owner/name": {"heads": {"model": "toys:heads"}}}
    others = {"builtin:target": {"heads": {"model": "toys:heads"}, "suffix": {"min_match": 3}}}
    (files / "drafters.json").write_text(json.dumps(hub | others))
    assert drafter_settings("owner/name") == {"heads": {"model": "toys:heads"}}
    assert drafter_settings("owner/other") == {}
    of_target = drafter_settings("builtin:target")
    assert of_target["suffix"] == {"min_match": 3}
    assert of_target["heads"] == {"model": "builtin:heads"}  # its own collection knows best


@pytest.mark.parametrize("text", ["{", '{"owner/name": {"heads": "toys:heads"}}'])
def test_settings_in_another_form_are_refused_with_their_file(files, text):
    (files / "drafters.json").write_text(text)
    with pytest.raises(ConfigError, match=r"drafters.json: this file of the collection of models 'toys'"):
        drafter_settings("owner/name")
