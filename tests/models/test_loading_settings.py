"""Settings of `from_pretrained` in `load_model` and a study's target: what works, and why the rest is refused."""

import json
import shutil
import sys
from itertools import product

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError, ModelSettings
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import load_model, load_vocabulary, wrap_model
from specdec_core.models.load import probe
from specdec_core.models.load.resolve import has_encoder
from tests import tiny
from tests.pairwise import some
from tests.tiny import FAMILIES, tiny_model
from tests.toys import CountingDrafter, Gamma

PROMPTS = [[3, 4, 5, 6], [7]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        tiny_model(family).save_pretrained(root / family)
    # Blocks of 64 weights are the smallest that bitsandbytes quantizes.
    tiny_model("llama", hidden_size=128, intermediate_size=128, head_dim=32).save_pretrained(root / "wide")
    return root


@pytest.fixture
def absent(monkeypatch):
    """Makes packages seem not installed."""

    def hide(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


def greedy(loaded):
    """Tokens that are drafted, verified and rejected, with rows at different positions."""
    sampling = SamplingSettings(temperature=0)
    decoder = Decoder(
        loaded, CountingDrafter(loaded.vocab_size), gamma=Gamma(3, 1), sampling=sampling, strict=True
    )
    rows = decoder.generate(PROMPTS, GenerationSettings(max_new_tokens=12)).sequences
    return [list(row.tokens) for row in rows]


def generated(loaded):
    """The tokens of the model's own `generate`."""
    return [tiny.generated(loaded.model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize(("name", "attention"), some(product(FAMILIES, ["eager", "sdpa"]), 6))
def test_attention_is_the_chosen_one_and_decodes_like_generate(folder, name, attention):
    loaded = load_model(name, folder=folder, attn_implementation=attention)
    assert loaded.model.config.get_text_config(decoder=True)._attn_implementation == attention
    assert loaded.family.ragged
    assert loaded.family.float_mask == (attention == "eager")
    assert greedy(loaded) == generated(loaded)


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        ("flex_attention", "compiles a kernel for each new number of tokens"),
        ("paged|sdpa", "cannot be rolled back"),
        ("kernels-community/flash-attn2", "a config runs no code"),
        ("flash_attention_2", "runs on a GPU, in bfloat16 or float16, and the model would run on a CPU"),
    ],
)
def test_attention_that_cannot_work_is_refused_with_the_reason(folder, attention, reason):
    with pytest.raises(ModelError, match=reason):
        load_model("llama", folder=folder, device="cpu", attn_implementation=attention)
    if attention != "flash_attention_2":
        with pytest.raises(ValidationError, match=reason):
            ModelSettings(model="llama", attn_implementation=attention)


def test_flash_attention_names_its_package(folder, absent, monkeypatch):
    absent("flash_attn")
    monkeypatch.setattr("specdec_core.models.load.loading.parse_device", lambda _: torch.device("cuda"))
    with pytest.raises(
        ModelError, match=r"flash_attention_2 needs the package flash_attn.*pip install 'flash-attn"
    ):
        load_model("llama", folder=folder, dtype="bfloat16", attn_implementation="flash_attention_2")
    with pytest.raises(ModelError, match="dtype is float32"):
        load_model("llama", folder=folder, dtype="float32", attn_implementation="flash_attention_2")


def test_a_model_in_a_subfolder(folder):
    assert load_model(folder, subfolder="t5").encoder_decoder
    assert has_encoder(folder, subfolder="t5")
    with pytest.raises(ModelError, match=r"These subfolders have one: bart, .*, wide; set `subfolder`"):
        load_model(folder)
    with pytest.raises(ModelError, match=r"the folder 'mamba' has no config.json"):
        load_model(folder, subfolder="mamba")


@pytest.mark.parametrize("inside", [True, False])
def test_the_tokenizer_of_a_model_in_a_subfolder_is_there_or_around_it(tmp_path, inside):
    tiny_model("llama", vocab=4096).save_pretrained(tmp_path / "a" / "b")
    tokenizer, size = load_vocabulary("builtin:drafter")
    tokenizer.save_pretrained(tmp_path / "a" / "b" if inside else tmp_path)
    loaded = load_model(tmp_path, subfolder="a/b")
    assert len(loaded.tokenizer) == size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trust_remote_code": True}, "'trust_remote_code' is not supported: a config runs no code"),
        ({"device": "cpu", "device_map": "auto"}, "'device' and 'device_map' are both given"),
        ({"max_memory": {"cpu": "1GiB"}}, "'max_memory' requires 'device_map'"),
        ({"packed": True, "quantization_config": {"load_in_4bit": True}}, "quantized weights cannot be packed"),
        ({"attn_implementation": "spda"}, "'?sdpa"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        ModelSettings(model="llama", **settings)
    if "trust_remote_code" not in settings:
        with pytest.raises(ModelError, match=message):
            load_model("llama", **settings)


def test_a_device_map_and_offloaded_weights_decode_like_generate(folder, tmp_path):
    pytest.importorskip("accelerate")
    assert greedy(load_model("llama", folder=folder, device_map="auto")) == greedy(
        load_model("llama", folder=folder)
    )
    modules = dict.fromkeys(("model.layers.0", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    disk = {"model.embed_tokens": "disk", "model.layers.1": "disk"}
    loaded = load_model("llama", folder=folder, device_map={**modules, **disk}, offload_folder=tmp_path / "off")
    assert loaded.device == torch.device("cpu")
    assert greedy(loaded) == generated(loaded) == greedy(load_model("llama", folder=folder))
    with pytest.raises(ModelError, match="quantized or offloaded, so they cannot be identified"):
        loaded.features.fingerprint()
    with pytest.raises(ModelError, match="spread over devices, which excludes `packed`"):
        load_model(
            "llama", folder=folder, device_map={**modules, **disk}, offload_folder=tmp_path / "off", packed=True
        )


def test_memory_limits_may_name_gpus_as_a_study_does(folder, monkeypatch):
    pytest.importorskip("accelerate")
    given = {}

    def record(_, **options):
        given.update(options)
        return tiny_model("llama"), dict.fromkeys(("missing_keys", "unexpected_keys", "mismatched_keys"), ())

    monkeypatch.setattr("specdec_core.models.load.loading.AutoModelForCausalLM.from_pretrained", record)
    load_model("llama", folder=folder, device_map="auto", max_memory={"0": "20GiB", "cpu": "60GiB"})
    assert given["max_memory"] == {0: "20GiB", "cpu": "60GiB"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 4}, "quant_method"),
        ({"quant_method": "awq", "bits": 4}, "pre-quantized"),
    ],
)
def test_quantization_that_cannot_work_is_refused_with_the_reason(folder, settings, message):
    with pytest.raises(ModelError, match=message):
        load_model("llama", folder=folder, quantization_config=settings)


def say_quantized(checkpoint, settings):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


@pytest.mark.parametrize(
    ("settings", "install"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "pip install optimum"),
        ({"quant_method": "torchao", "quant_type": {}}, r"pip install 'specdec-core\[torchao\]'"),
    ],
    ids=str,
)
def test_a_quantized_checkpoint_names_the_missing_package(folder, tmp_path, absent, settings, install):
    absent("torchao", "bitsandbytes", "optimum", "gptqmodel")
    shutil.copytree(folder / "llama", tmp_path, dirs_exist_ok=True)
    say_quantized(tmp_path, settings)
    with pytest.raises(ModelError, match=install):
        load_model(tmp_path)


INT8 = {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}


@pytest.mark.parametrize(
    ("package", "settings"),
    [
        ("torchao", INT8),
        (
            "torchao",
            {**INT8, "quant_type": {"name": "Int8WeightOnlyConfig"}, "modules_to_not_convert": ["lm_head"]},
        ),
        ("bitsandbytes", {"load_in_8bit": True}),
        ("bitsandbytes", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")  # those of the packages, while they are imported
def test_a_quantized_model_is_probed_and_decodes_like_generate(folder, package, settings, monkeypatch):
    pytest.importorskip(package)
    compared = []
    expected = probe.uncached_logits
    monkeypatch.setattr(probe, "uncached_logits", lambda *given: compared.append(given) or expected(*given))
    load_model("wide", folder=folder)
    assert not compared
    loaded = load_model("wide", folder=folder, quantization_config=settings)
    assert loaded.quantized
    assert compared
    assert loaded.vocab_size == 40
    assert greedy(loaded) == generated(loaded)
    with pytest.raises(ModelError, match="packed"):
        load_model("wide", folder=folder, quantization_config=settings, packed=True)


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_is_quantized_loads_as_it_is_and_is_not_quantized_twice(folder, tmp_path):
    pytest.importorskip("torchao")
    loaded = load_model("wide", folder=folder, quantization_config=INT8)
    loaded.model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert again.quantized
    assert greedy(again) == greedy(loaded)
    with pytest.raises(ModelError, match=r"already quantized \(.*torchao.*\); remove `quantization_config`"):
        load_model(tmp_path, quantization_config=INT8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_fp8_are_dequantized_without_a_gpu_and_decode_like_generate(folder, tmp_path, dtype):
    pytest.importorskip("accelerate")
    load_model("wide", folder=folder, dtype="bfloat16").model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        weights |= {name: weights[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1, 1)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    say_quantized(tmp_path, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    loaded = load_model(tmp_path, dtype=dtype)
    assert {weight.dtype for weight in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert greedy(loaded) == generated(loaded)


def adapters(folder, root):
    """Write a LoRA and a prefix for the model `wide`; return their folders."""
    import peft
    from transformers import AutoModelForCausalLM

    configs = {
        "lora": peft.LoraConfig(
            r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
        ),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    }
    for name, config in configs.items():
        model = AutoModelForCausalLM.from_pretrained(folder / "wide")
        peft.get_peft_model(model, config).save_pretrained(root / name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantized", [False, True])
def test_an_adapter_changes_the_model_which_decodes_like_generate(folder, tmp_path, quantized):
    peft = pytest.importorskip("peft")
    settings = {}
    if quantized:
        pytest.importorskip("torchao")
        settings = {"quantization_config": INT8}
    adapters(folder, tmp_path)
    plain = load_model("wide", folder=folder, **settings)
    loaded = load_model(str(folder / "wide"), folder=tmp_path, adapter="lora", **settings)
    assert loaded.name.endswith("wide + lora")
    assert greedy(loaded) == generated(loaded) != greedy(plain)
    reference = peft.PeftModel.from_pretrained(
        load_model("wide", folder=folder, **settings).model, tmp_path / "lora"
    )
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded.model(ids).logits, reference(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_adapters_that_cannot_work_are_refused_with_the_reason(folder, tmp_path):
    pytest.importorskip("peft")
    adapters(folder, tmp_path)
    wide = str(folder / "wide")
    with pytest.raises(ModelError, match="adapters of type prefix_tuning are not supported"):
        load_model(wide, adapter="prefix", folder=tmp_path)
    with pytest.raises(ModelError, match=r"lora: this adapter cannot be loaded: .*size mismatch"):
        load_model(str(folder / "llama"), adapter="lora", folder=tmp_path)
    weights = tmp_path / "lora" / "adapter_model.safetensors"
    tensors = load_file(weights)
    first = next(iter(tensors))
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, weights)
    with pytest.raises(ModelError, match=r"missing adapter keys.*layers\.0"):
        load_model(wide, adapter="lora", folder=tmp_path)
    save_file({**tensors, first.replace("layers.0", "layers.9"): tensors[first].clone()}, weights)
    with pytest.raises(ModelError, match=r"does not name: .*layers\.9"):
        load_model(wide, adapter="lora", folder=tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_peft_model_in_memory_is_unwrapped_if_its_adapter_is_of_the_weights():
    peft = pytest.importorskip("peft")
    lora = {"r": 4, "target_modules": ["q_proj", "up_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(tiny_model("llama"), peft.LoraConfig(**lora))
    loaded = wrap_model(model)
    assert loaded.family.ragged
    assert greedy(loaded) == generated(loaded) != greedy(wrap_model(tiny_model("llama")))
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits)
    for kind, config in {
        "prefix_tuning": peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
        "prompt_tuning": peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
        "alora": peft.LoraConfig(**lora, alora_invocation_tokens=[5]),
    }.items():
        with pytest.raises(ModelError, match=f"adapters of type {kind} are not supported"):
            wrap_model(peft.get_peft_model(tiny_model("llama"), config))


def test_adapters_need_peft_and_are_no_models(folder, tmp_path, absent, monkeypatch):
    absent("peft")
    # It is said before the model is loaded.
    monkeypatch.setattr("specdec_core.models.load.loading.AutoModelForCausalLM", None)
    with pytest.raises(ModelError, match=r"an adapter needs the package peft.*'specdec-core\[peft\]'"):
        load_model("llama", folder=folder, adapter="lora")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(ModelError, match=r"Set `model` to its base model \(owner/base\)"):
        load_model(tmp_path)
