"""Properties of a model that are known before it is loaded."""

import json

import pytest

from specdec_core.interface import ModelError
from specdec_core.models import load_model, load_vocabulary
from specdec_core.models.load.resolve import has_encoder, hub_options, model_folder
from tests.tiny import ENCODER_DECODER, FAMILIES, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_config_tells_whether_there_is_an_encoder(family, tmp_path):
    tiny_model(family).save_pretrained(tmp_path / "model")
    assert has_encoder("model", tmp_path) is (family in ENCODER_DECODER)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"is_encoder_decoder": True, "architectures": ["XForCausalLM"]}, True),
        ({"is_encoder_decoder": False, "architectures": ["XForConditionalGeneration"]}, False),
        ({"architectures": ["LlamaForCausalLM"]}, False),
        # A config that was written by hand, and models for text and pictures, may say neither.
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, None),
        ({"model_type": "t5"}, None),
    ],
)
def test_whether_a_config_has_an_encoder(config, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert has_encoder(tmp_path) is expected


def test_a_missing_or_broken_config_tells_nothing(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert has_encoder(tmp_path) is None
    assert has_encoder("nobody/nothing", tmp_path) is None
    assert has_encoder("builtin:nothing") is None


def test_the_folder_of_a_model(tmp_path):
    (tmp_path / "a").mkdir()
    assert model_folder("a", tmp_path) == tmp_path / "a"
    assert model_folder("owner/name", tmp_path) is None
    assert model_folder("builtin:target").name == "target"
    assert has_encoder("builtin:target") is has_encoder("builtin:drafter") is False
    with pytest.raises(ModelError, match="unknown model 'builtin:targte'"):
        model_folder("builtin:targte")
    for impossible in ("owner name/model", "owner/a--b", "a" * 97):
        with pytest.raises(ModelError, match=f"^{impossible}: no such folder"):
            model_folder(impossible, tmp_path)


@pytest.mark.parametrize("name", ["bg", "models/bg"])
def test_a_name_that_resembles_a_folder_is_not_sent_to_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    model = (tmp_path / name).with_name("big")
    model.mkdir(parents=True)
    assert model_folder(name, tmp_path) is None  # what is no model is no near miss
    (model / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no such folder \(.*bg\)\. Did you mean 'big'\?"):
        model_folder(name, tmp_path)
    assert model_folder("unlike/anything", tmp_path) is None
    (tmp_path / "cache" / f"models--{name.replace('/', '--')}" / "snapshots").mkdir(parents=True)
    assert model_folder(name, tmp_path) is None


def test_a_hub_out_of_reach_is_asked_once(tmp_path, monkeypatch):
    asked = []

    def unreachable(self, model, **_):
        asked.append(model)
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"owner/name: .*cannot be reached \(ConnectionError: no network\)"):
        load_model("owner/name")
    assert asked == ["owner/name"]
    (tmp_path / "models--owner--name" / "snapshots").mkdir(parents=True)
    assert hub_options("owner/name") == {"local_files_only": True}


def test_a_model_whose_files_are_cached_is_loaded_without_asking_the_hub(tmp_path, monkeypatch):
    def asked(*_, **__):
        pytest.fail("the hub was asked")

    cache = tmp_path / "models--owner--name"
    snapshot = cache / "snapshots" / ("0" * 40)
    tiny_model("llama", vocab=4096).save_pretrained(snapshot)
    load_vocabulary("builtin:target")[0].save_pretrained(snapshot)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", asked)
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", asked)
    assert load_model("owner/name").tokenizer is not None
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(pytest.fail.Exception, match="asked"):
        load_model("owner/name")
