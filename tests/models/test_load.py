"""Loading models: folders, names, dtypes, devices, and errors with their reason."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch

from specdec_core import generate_with
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError
from specdec_core.models import ModelSession, load_model, load_vocabulary, wrap_model
from tests.generation.families import MULTIMODAL, build
from tests.tiny import FAMILIES, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_model("llama").save_pretrained(root / "llama")
    tiny_model("t5").save_pretrained(root / "t5")
    return root


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_folder_loads_from_safetensors(folder, name):
    loaded = load_model(name, folder=folder)
    assert loaded.encoder_decoder == (name == "t5")
    assert loaded.vocab_size == 40
    assert loaded.eos_ids == (1,)
    assert loaded.tokenizer is None
    assert not loaded.model.training
    info = loaded.info(folder)
    assert (info.vocab_size, info.folder, info.encoder_decoder) == (40, folder, name == "t5")


@pytest.mark.parametrize(("kind", "ids"), [("ByT5Tokenizer", [100, 1]), ("LlamaTokenizer", None)])
def test_a_tokenizer_without_files_is_one_if_its_kind_needs_none(tmp_path, kind, ids):
    tiny_model("t5").save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    tokenizer, _ = load_vocabulary(tmp_path)
    assert ids == (tokenizer and tokenizer("a")["input_ids"])


@pytest.mark.parametrize("family", MULTIMODAL)
def test_a_model_that_takes_images_is_decoded_with_text(family, tmp_path):
    model = build(family)
    model.save_pretrained(tmp_path)
    decoder = Decoder(load_model(tmp_path), "prompt-copy", gamma=3, temperature=0)
    expected = model.generate(torch.tensor([[5, 6, 7, 5, 6]]), max_new_tokens=8, do_sample=False)[0, 5:].tolist()
    assert list(decoder.generate([5, 6, 7, 5, 6], max_new_tokens=8).tokens) == expected


def test_dtype_is_passed_through(folder):
    assert load_model(folder / "llama", dtype="bfloat16").model.dtype == torch.bfloat16
    assert load_model(folder / "llama").model.dtype == torch.float32


def test_device_map_and_revision_are_passed_through(folder, monkeypatch):
    given = {}

    def record(root, **options):
        given.update(options)
        return tiny_model("llama"), dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ())

    monkeypatch.setattr("specdec_core.models.load.loading.AutoModelForCausalLM.from_pretrained", record)
    monkeypatch.setattr("specdec_core.models.load.loading.require", lambda *_: None)
    load_model(folder / "llama", device_map="auto", revision="v1")
    assert given["device_map"] == "auto"
    assert given["revision"] == "v1"
    assert given["use_safetensors"] is True
    assert given["trust_remote_code"] is False


@pytest.mark.parametrize("name", ["target", "drafter"])
def test_the_builtin_pair_loads_and_its_tokenizer_round_trips(name):
    loaded = load_model(f"builtin:{name}")
    text = "def add(a, b):\n    return a + b\n"
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text
    assert loaded.vocab_size == len(loaded.tokenizer) == 4096


def test_a_hub_name_that_cannot_be_reached_says_what_to_check(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="from the hub failed"):
        load_model("no-such-owner/no-such-model")


@pytest.mark.parametrize("load", [load_model, load_vocabulary])
def test_an_invalid_config_is_an_error(load, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "not-a-model"}))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "bfloat16"),
        ({"dtype": "float23"}, "float32"),
        ({"device": "qpu"}, "not known"),
    ],
)
def test_wrong_options_say_what_is_allowed(folder, options, message):
    with pytest.raises(ModelError, match=message):
        load_model(folder / "llama", **options)


def test_embeddings_that_were_resized_are_noticed():
    model = tiny_model("llama")
    loaded, function = wrap_model(model), generate_with(drafter="random", gamma=2)
    ids = torch.tensor([[3, 4, 5]])
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    model.generate(ids, custom_generate=function, **settings)
    model.resize_token_embeddings(50, mean_resizing=False)
    model.lm_head.weight.data[45] = 100 * model.lm_head.weight.data[:40].sum(0)
    expected = model.generate(ids, **settings)
    assert model.generate(ids, custom_generate=function, **settings).equal(expected)
    with pytest.raises(ModelError, match="had 40 logits when it was wrapped, and has 50 now"):
        ModelSession(loaded, 1, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_buffers_are_allocated_once_and_written_in_place(family):
    loaded = wrap_model(tiny_model(family))
    session = ModelSession(loaded, 1, 32, [[3, 4, 5]] if loaded.encoder_decoder else None)
    buffers = set()

    def note(_model, _inputs, keywords, _output):
        cache = keywords[loaded.family.cache_argument]
        layers = getattr(cache, "self_attention_cache", cache).layers
        buffers.add(tuple((layer.keys.data_ptr(), layer.keys.shape) for layer in layers))

    loaded.model.register_forward_hook(note, with_kwargs=True)
    session.forward([[0, 4, 5]])
    for token in range(2, 20):
        session.forward([[token]], torch.tensor([[3, 4]]))
        session.rollback([session.lengths[0] - 2])
    (layers,) = buffers
    assert len(layers) == 2
    assert session.lengths == [21]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_verified_logits_are_computed(family, monkeypatch):
    model = tiny_model(family)
    rows = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda _m, inputs, _o: rows.append(inputs[0].shape[1]))
    session = ModelSession(wrap_model(model), 2, 64)
    session.forward([[3] * 20, [4] * 7], torch.tensor([[5, 6, 7], [5, 6, 7]]))
    session.rollback([20, 7])
    session.forward([[3], [4]], torch.tensor([[5], [6]]))
    assert rows == [4, 2]


def test_an_untied_output_embedding_is_loaded_without_a_warning(monkeypatch):
    # The file has embedding and head; the library makes the config say that they are one, and warns.
    said = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", said.append)
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(handler)
    try:
        loaded = load_model("builtin:t5-target")
    finally:
        logger.removeHandler(handler)
    head, embedding = loaded.model.lm_head.weight, loaded.model.get_input_embeddings().weight
    assert not torch.equal(head, embedding)
    assert not said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.nn.DataParallel, "DataParallel is not a model of transformers.*pass `.module`"),
        (lambda model: model.config.update({"return_dict": False}), "return_dict=False"),
    ],
)
def test_what_gives_no_logits_is_refused(change, message):
    model = tiny_model("llama")
    with pytest.raises(ModelError, match=message):
        wrap_model(change(model) or model)


@pytest.mark.filterwarnings("ignore")
def test_activations_with_one_scale_for_all_tokens_are_refused():
    model = torch.ao.quantization.quantize_dynamic(tiny_model("llama"), {torch.nn.Linear})
    with pytest.raises(ModelError, match="one scale for all tokens of a forward pass"):
        wrap_model(model)
    model, given = tiny_model("llama"), SimpleNamespace(dynamic=True, strategy="token")
    model.lm_head.quantization_scheme = SimpleNamespace(input_activations=given)  # as compressed-tensors marks it
    wrap_model(model)
    given.strategy = "tensor"
    with pytest.raises(ModelError, match="one scale for all tokens of a forward pass"):
        wrap_model(model)


def test_a_model_is_set_to_evaluation_and_refused_if_it_changes_later():
    model = tiny_model("gpt2", resid_pdrop=0.5)
    loaded = wrap_model(model.train())
    assert not model.training
    ModelSession(loaded, 1, 8)
    model.train()
    with pytest.raises(ModelError, match=r"is in training mode.*call eval\(\)"):
        ModelSession(loaded, 1, 8)
    model.eval().to("meta")
    with pytest.raises(ModelError, match="on the meta device, without values"):
        ModelSession(loaded, 1, 8)
