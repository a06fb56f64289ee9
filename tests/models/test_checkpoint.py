"""A checkpoint is complete and of safetensors, or it is refused before it misleads."""

import json
import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specdec_core.interface import ModelError
from specdec_core.models import load_model, load_vocabulary
from specdec_core.testing.harness.tiny_target import random_model
from tests.tiny import BOTH_SIDES, FAMILIES, tiny_model

INDEX = "model.safetensors.index.json"


class Folder:
    """A saved tiny model whose weights and config can be changed."""

    def __init__(self, folder: Path, family: str = "llama") -> None:
        self.folder = folder
        self.weights = folder / "model.safetensors"
        self.model = tiny_model(family)
        self.model.save_pretrained(folder)
        self.tensors = load_file(self.weights)

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, self.weights, metadata={"format": "pt"})

    def configure(self, **settings: object) -> None:
        path = self.folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    def index(self, shard: object, name: str = INDEX) -> None:
        (self.folder / name).write_text(
            json.dumps({"metadata": {}, "weight_map": dict.fromkeys(self.tensors, shard)})
        )


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "model")


@pytest.fixture
def said():
    """What transformers logs about weights."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_missing_weights_are_an_error_that_names_the_first_and_counts_the_rest(tmp_path, family, said):
    folder = Folder(tmp_path, family)
    names = sorted(name for name in folder.tensors if any(part in name for part in (".h.", "layers.", "block.")))
    folder.write({name: tensor for name, tensor in folder.tensors.items() if name not in names[:6]})
    with pytest.raises(ModelError, match=r"do not fit the config \(6 missing: .* and 2 more\)") as error:
        load_model(tmp_path)
    assert names[0] in str(error.value)
    assert not said


def test_a_renamed_weight_is_shown_under_both_names(folder):
    first, *rest = folder.tensors
    folder.write({"body." + first: folder.tensors[first]} | {name: folder.tensors[name] for name in rest})
    with pytest.raises(ModelError, match=rf"1 missing: {first}; 1 unexpected: body\.{first}"):
        load_model(folder.folder)


def test_a_weight_of_another_shape_is_shown_with_both_shapes(folder, said):
    folder.configure(intermediate_size=24)
    with pytest.raises(
        ModelError, match=r"6 of another shape: .*\(stored \[32, 48\], by the config \[32, 24\]\).* and 2 more"
    ):
        load_model(folder.folder)
    assert not said


def test_a_head_that_is_neither_stored_nor_tied_is_missing(tmp_path):
    folder = Folder(tmp_path, "qwen3")
    folder.configure(tie_word_embeddings=False)
    folder.write({name: tensor for name, tensor in folder.tensors.items() if "lm_head" not in name})
    with pytest.raises(ModelError, match=r"1 missing: lm_head\.weight"):
        load_model(tmp_path)
    folder.configure(tie_word_embeddings=True)
    assert load_model(tmp_path).vocab_size == 40


def test_weights_of_another_task_are_harmless(folder):
    folder.write({**folder.tensors, "score.weight": torch.zeros(2, 32), "vision.weight": torch.zeros(3)})
    loaded = load_model(folder.folder)
    for name, weight in folder.model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_complete_checkpoint_gives_its_weights(tmp_path, family):
    folder = Folder(tmp_path, family)
    loaded = load_model(tmp_path, packed=False).model.state_dict()
    for name, weight in folder.model.state_dict().items():
        torch.testing.assert_close(loaded[name], weight)


@pytest.mark.parametrize("family", ["Marian", "M2M100"])
def test_what_a_family_computes_by_itself_is_not_missing(tmp_path, family):
    ids = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    sizes = {"d_model": 32, "decoder_start_token_id": 2, "max_position_embeddings": 64, **BOTH_SIDES}
    random_model(getattr(transformers, f"{family}Config")(**sizes, **ids)).save_pretrained(tmp_path)
    assert load_model(tmp_path).encoder_decoder


def test_a_pickle_alone_is_not_read(folder):
    torch.save(folder.tensors, folder.folder / "pytorch_model.bin")
    folder.weights.unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors\. A pickle such as pytorch_model\.bin"):
        load_model(folder.folder)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "model.safetensors.bin"])
def test_an_index_of_pickles_is_refused_before_they_are_read(folder, shard, monkeypatch):
    folder.weights.unlink()
    torch.save(folder.model.state_dict(), folder.folder / str(shard))
    folder.index(shard)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    with pytest.raises(ModelError, match=rf"{INDEX} names the weight file '{shard}'. .*safetensors only"):
        load_model(folder.folder)


@pytest.mark.parametrize("kind", ["pickle", "adapter"])
def test_a_hub_model_is_checked_like_a_folder(kind, tmp_path, monkeypatch):
    """From a cache of the hub, since there is no network."""
    repository = tmp_path / "models--owner--name"
    folder = Folder(repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    if kind == "pickle":
        folder.weights.unlink()
        folder.index("pytorch_model.bin")
        message = f"{INDEX} names the weight file 'pytorch_model.bin'"
    else:
        (folder.folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
        message = r"holds a PEFT adapter .*base model \(owner/base\)"
    with pytest.raises(ModelError, match=message):
        load_model("owner/name")


def test_attention_from_the_hub_is_refused_in_a_config_too(folder):
    folder.configure(attn_implementation="kernels-community/flash-attn2")
    with pytest.raises(ModelError, match="it is code from the hub, and a config runs no code"):
        load_model(folder.folder)


@pytest.mark.parametrize("load", [load_model, load_vocabulary])
@pytest.mark.parametrize("what", ["model", "tokenizer"])
def test_a_folder_with_code_is_refused_without_a_question(folder, load, what, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    if what == "model":
        folder.configure(model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    else:
        (folder.folder / "vocab.json").write_text("{}")
        (folder.folder / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.T", null]}}'
        )
    (folder.folder / "own.py").write_text("raise SystemExit('code was run')")
    with pytest.raises(ModelError, match="contains custom code"):
        load(folder.folder)
