"""A model with packed weights gives the same logits, and the original stays unchanged."""

import subprocess
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.codecache import CppCodeCache
from torch.fx.experimental.proxy_tensor import make_fx

from specdec_core.interface import ModelError
from specdec_core.interface.settings import TargetConfig
from specdec_core.models import ModelSession, compile_model, load_as_set, load_model, pack, quantize, wrap_model
from specdec_core.models.fast import attention, packing, products
from specdec_core.models.fast.inductor import fuse_gates
from specdec_core.models.fast.integer_products import int8_product, round_to_int8
from specdec_core.models.fast.packed_linear import PackedLinear
from specdec_core.models.fast.packing import is_packed, pack_as_set, unpack
from specdec_core.models.fast.products import NativeProduct, supports
from tests.tiny import DECODER_ONLY, ENCODER_DECODER, tiny_model

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

SOURCE, TOKENS = [3, 4, 5, 6], [1, 9, 10, 11, 12]


def logits_of(model, rows=1):
    ids = {"input_ids": torch.tensor([TOKENS] * rows)}
    if model.config.is_encoder_decoder:
        ids = {"input_ids": torch.tensor([SOURCE] * rows), "decoder_input_ids": torch.tensor([TOKENS] * rows)}
    with torch.inference_mode():
        return model(**ids, use_cache=False).logits


def packed_layers(model):
    return [name for name, layer in model.named_modules() if isinstance(layer, PackedLinear)]


@pytest.mark.parametrize("family", [*DECODER_ONLY, *ENCODER_DECODER])
@pytest.mark.parametrize("own", [True, False])
def test_it_gives_the_same_logits(family, own, monkeypatch):
    if not own:
        monkeypatch.setattr(packing, "supports", lambda dtype: False)
    loaded = wrap_model(tiny_model(family))
    before = logits_of(loaded.model)
    packed = pack(loaded)
    torch.testing.assert_close(logits_of(packed.model), before, atol=1e-4, rtol=1e-4)
    assert torch.equal(logits_of(loaded.model), before)
    assert not packed_layers(loaded.model)
    linear = {name for name, layer in loaded.model.named_modules() if type(layer) is torch.nn.Linear}
    assert set(packed_layers(packed.model)) == linear
    assert linear


def rounded(rows, group):
    """Return rows as they are after rounding to 8 bits, with a scale for each group of columns."""
    parts = map(round_to_int8, rows.split(group, 1))
    return torch.cat([values * scales[:, None] for values, scales in parts], 1)


def needs(*dtypes):
    if not all(map(supports, dtypes)):
        pytest.skip("no product and no attention of our own on this CPU")


def our_product(dtype, *shape):
    """Return a product, its weights and bias, and rows."""
    needs(dtype)
    weight, bias, rows = torch.randn(shape), torch.randn(shape[0]), torch.randn(19, shape[1])
    if dtype is torch.uint8:
        return int8_product(weight, bias), rounded(weight, shape[1]), bias, rounded(rows, 32)
    weight, bias, rows = (tensor.to(dtype) for tensor in (weight, bias, rows))
    return NativeProduct(weight, bias), weight, bias, rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(1, 1), (100, 33), (48, 64)])
def test_our_product_is_right_and_no_row_changes_another(dtype, shape):
    product, weight, bias, rows = our_product(dtype, *shape)
    expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double()).to(rows.dtype)
    torch.testing.assert_close(product(rows), expected)
    for count in range(1, 10):
        assert torch.equal(product(rows[:count]), product(rows)[:count])
    assert torch.equal(product(rows[None].float()), product(rows)[None].float())
    rows[2, -1] = torch.nan
    assert product(rows).isnan().all(1).tolist() == [row == 2 for row in range(19)]
    with pytest.raises(RuntimeError, match="packed weights multiply rows"):
        product(rows.repeat(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("operator", [torch.mul, torch.add])
def test_threads_make_products_and_gates_and_attend_as_one_does(dtype, operator):
    product, _, _, rows = our_product(dtype, 1536, 64)
    query, key = (torch.randn(2, heads, count, 64).to(rows.dtype) for heads, count in ((8, 9), (2, 300)))

    def function(rows):
        gate, up = product(rows).split([768, 768], -1)
        attended = torch.ops.specdec.attention(query, key, key, None, 0.1)
        return product(rows), operator(torch.nn.functional.silu(gate), up), attended

    graph = make_fx(function)(torch.zeros_like(rows))
    fuse_gates(graph)
    assert ("gated_product" in graph.code) == (operator is torch.mul)
    found = []
    for threads in (*[2] * 20, 1):  # those of one would be found in memory that two have left out
        torch.set_num_threads(threads)
        found.append(graph(rows))
    for together in found:  # memory that threads share shows now and then
        torch.testing.assert_close(together, found[-1], atol=0, rtol=0)
    torch.testing.assert_close(found[-1], function(rows), atol=0.1, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", ["seen", "added", "biased", "all"])
def test_our_attention_is_right_and_no_token_changes_another(dtype, masked, monkeypatch):
    needs(dtype)
    layer = pack(wrap_model(tiny_model("llama"))).model.model.layers[0].self_attn
    layer.num_key_value_groups = 3
    width, keys = 23, 37
    query, key, value = (
        torch.randn(2, heads, count, size).to(dtype)
        for heads, count, size in ((6, width, 32), (2, keys, 32), (2, keys, 16))
    )
    seen = torch.arange(keys) <= keys - 9 - width + torch.arange(width)[:, None]
    seen = torch.stack([seen, seen & (torch.arange(keys) > 4)])[:, None]
    bias = torch.randn(1, 6, width, keys).to(dtype) if masked == "biased" else None
    added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf).to(dtype)
    mask = {"seen": seen, "added": added, "biased": seen, "all": None}[masked]

    def attend(function, count=width, keys=keys):
        part = [None if given is None else given[:, :, :count, :keys] for given in (mask, bias)]
        options = {"is_causal": False, "scaling": 0.3, "position_bias": part[1]}
        return function(layer, query[:, :, :count], key[:, :, :keys], value[:, :, :keys], part[0], **options)[0]

    expected = attend(attention.sdpa_attention_forward)
    monkeypatch.delattr(attention, "sdpa_attention_forward")
    found = attend(attention.attend)
    torch.testing.assert_close(found, expected)
    for count in range(1, width):
        assert torch.equal(attend(attention.attend, count), found[:, :count])
    if mask is not None:  # what is not seen does not matter
        assert torch.equal(attend(attention.attend, keys=keys - 9), found)
    assert not attention.attend(layer, query, key, value, torch.zeros_like(seen))[0].any()
    for some, other in ((key[..., :16], value), (key, value[:, :, 1:]), (key[:1], value[:1])):
        with pytest.raises(RuntimeError, match="attention takes queries"):
            torch.ops.specdec.attention(query, some, other, None, 1.0)


def test_attention_of_other_shapes_is_that_of_transformers():
    layer = pack(wrap_model(tiny_model("llama"))).model.model.layers[0].self_attn
    query, key = torch.randn(3, 4, 4, 16), torch.randn(3, 2, 4, 16)
    seen = torch.tensor([False, True, True, True])[:, None]  # all keys or none
    for first, then, mask in (
        *((query[:1], key, seen), (query, key[:1], seen), (query, key, seen)),
        *((query, key[:, :, :0], seen[:, :0]), (query, key, None)),
    ):
        given = (layer, first, then, then, mask)
        torch.testing.assert_close(attention.attend(*given)[0], attention.sdpa_attention_forward(*given)[0])


def compiled(loaded):
    return compile_model(pack(loaded))


@pytest.mark.parametrize("kind", [pack, partial(quantize, bits=8), pytest.param(compiled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_a_token_do_not_depend_on_the_width_of_a_pass(kind, dtype):
    needs(dtype, torch.uint8)
    loaded = kind(wrap_model(tiny_model("llama", head_dim=16).to(dtype)))
    found = []
    for width in (1, 2, 5):
        session, logits = ModelSession(loaded, 1, 40), []
        session.forward([TOKENS])
        for at in range(0, 10, width):
            draft = torch.arange(at + 1, at + width)[None]
            logits.append(session.forward([[at]], draft if width > 1 else None)[0])
        found.append(torch.cat(logits))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kind", [pack, partial(quantize, bits=8)])
@pytest.mark.parametrize("length", [8, 27, 47])
def test_no_draft_changes_how_its_prompt_is_rounded(kind, length):
    needs(torch.bfloat16, torch.uint8)
    loaded = kind(wrap_model(tiny_model("llama", head_dim=16, hidden_size=64).to(torch.bfloat16)))
    prompts = [[token % 20 for token in range(length - row)] for row in range(2)]
    found = []
    for drafted in (0, 5, 8):
        session = ModelSession(loaded, 2, 80)
        first = session.forward(prompts, torch.arange(drafted).expand(2, -1) if drafted else None)
        session.rollback([len(prompt) for prompt in prompts])
        found.append(torch.cat([first[:, :1], session.forward([[3], [4]])], 1))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_without_a_compiler_a_warning_says_which_products_are_used(monkeypatch):
    monkeypatch.setattr(CppCodeCache, "load", lambda source: subprocess.run(["no-such-compiler"], check=True))
    products._compiled.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="no-such-compiler.*need a C"):
            packed = pack(wrap_model(tiny_model("llama")))
    finally:
        products._compiled.cache_clear()
    assert is_packed(packed)


def test_a_dtype_that_the_compiler_lacks_is_not_supported(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(products, "_compiled", lambda: SimpleNamespace(has_bfloat16=lambda: 0))
    assert not supports(torch.bfloat16)


def test_weights_are_shared_and_keep_their_names(tmp_path):
    loaded = wrap_model(tiny_model("t5"))
    packed = pack(loaded)
    theirs = dict(packed.model.named_parameters())
    assert all(theirs[name] is weight for name, weight in loaded.model.named_parameters())
    packed.model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(type(loaded.model).from_pretrained(tmp_path).eval()), logits_of(loaded.model))


def test_bfloat16():
    loaded = wrap_model(tiny_model("llama", sharpness=1.0).to(torch.bfloat16))
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert not is_packed(pack_as_set(loaded, "auto"))
        with pytest.raises(ModelError, match="no product of packed bfloat16 weights"):
            pack(loaded)
        return
    torch.testing.assert_close(logits_of(pack(loaded).model), logits_of(loaded.model), atol=0.1, rtol=0.1)


def test_a_study_packs_with_a_setting(tmp_path):
    tiny_model("t5").save_pretrained(tmp_path)
    whole = load_model(tmp_path, packed=True)
    assert packed_layers(whole.model)
    config = TargetConfig(model=str(tmp_path), packed=True, inflate={"layers": 2, "width": 96})
    larger = load_as_set(config)
    assert any("decoder.block.3" in name for name in packed_layers(larger.model)), "what was added is packed too"
    torch.testing.assert_close(logits_of(larger.model), logits_of(whole.model), atol=1e-4, rtol=1e-4)


def test_unpacking_gives_the_original_back():
    loaded = wrap_model(tiny_model("llama"))
    again = unpack(pack(loaded))
    assert not packed_layers(again.model)
    assert torch.equal(logits_of(again.model), logits_of(loaded.model))
    assert unpack(loaded) is loaded


def test_drafters_get_the_hidden_states_of_the_packed_model():
    loaded = wrap_model(tiny_model("llama"))
    packed = pack(loaded)
    for model in (packed, unpack(packed)):
        with model.features.capture() as hidden:
            logits_of(model.model)
        assert hidden[0].shape == (1, len(TOKENS), loaded.features.hidden_size)
        assert model.features.fingerprint() == loaded.features.fingerprint()


class TestAuto:
    """`packed: auto` packs where that works and pays."""

    @pytest.fixture(autouse=True)
    def _every_size_pays(self, monkeypatch):
        monkeypatch.setattr(packing, "SMALLEST", 1)
        monkeypatch.setattr(packing, "available_memory", lambda: 2**40)

    def test_it_is_the_default_of_load_model_and_of_studies(self, tmp_path):
        tiny_model("t5").save_pretrained(tmp_path)
        assert is_packed(load_model(tmp_path))
        assert is_packed(load_as_set(TargetConfig(model=str(tmp_path))))
        assert is_packed(load_as_set(TargetConfig(model=str(tmp_path), inflate={"layers": 1, "width": 8})))
        assert not is_packed(load_model(tmp_path, packed=False))
        assert not is_packed(load_as_set(TargetConfig(model=str(tmp_path), packed=False)))

    def test_it_leaves_models_that_cannot_be_packed(self, tmp_path):
        tiny_model("llama").save_pretrained(tmp_path)
        assert not is_packed(load_model(tmp_path, dtype="float16"))
        assert not is_packed(load_model(tmp_path, device="meta"))

    @pytest.mark.parametrize(("free", "packed"), [(2, True), (1.99, False)])
    def test_the_copy_must_fit_into_half_of_the_free_memory(self, tmp_path, monkeypatch, free, packed):
        model = tiny_model("llama")
        size = sum(layer.weight.nbytes for layer in model.modules() if type(layer) is torch.nn.Linear)
        model.save_pretrained(tmp_path)
        monkeypatch.setattr(packing, "available_memory", lambda: int(free * size))
        assert is_packed(load_model(tmp_path)) == packed


@pytest.mark.parametrize("kind", [pack, partial(quantize, bits=8), partial(quantize, bits=4)])
def test_it_refuses_to_be_trained(kind):
    model = kind(wrap_model(tiny_model("llama"))).model
    logits = model(torch.tensor([TOKENS]), use_cache=False).logits
    for train in (model.train, logits.sum().backward):
        with pytest.raises(ModelError, match=r"Load the model with `packed: false`"):
            train()


def shares(loaded):
    """Return the names of the layers of each product, without the layer's number."""
    found = {}
    for name, layer in loaded.model.named_modules():
        if isinstance(layer, PackedLinear):
            found.setdefault(id(layer.product), []).append(name)
    return [" ".join(name.rpartition(".")[2] for name in names) for names in found.values()]


@pytest.mark.parametrize("kind", [pack, partial(quantize, bits=8)])
def test_layers_with_the_same_input_multiply_at_once(kind):
    layers = tiny_model("llama").config.num_hidden_layers
    assert shares(kind(wrap_model(tiny_model("llama")))) == [
        *["q_proj k_proj v_proj", "o_proj", "gate_proj up_proj", "down_proj"] * layers,
        "lm_head",
    ]
    t5 = shares(kind(wrap_model(tiny_model("t5"))))
    assert t5.count("q k v") == 4
    assert t5.count("q") == t5.count("k v") == 2  # attention to the encoder's states


class Pair(torch.nn.Module):
    """Two layers, the second of which may be given what the first was, changed in place."""

    def __init__(self, width, changed):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(width, width) for _ in range(2))
        self.changed = changed

    def forward(self, rows):
        first = self.first(rows)
        if self.changed:
            rows.mul_(2)
        return first + self.second(rows)


@pytest.mark.parametrize("changed", [False, True])
def test_a_tensor_that_is_changed_in_place_is_another_input(changed):
    model = tiny_model("llama")
    model.model.norm = torch.nn.Sequential(model.model.norm, Pair(model.config.hidden_size, changed))
    loaded = wrap_model(model)
    packed = pack(loaded)
    torch.testing.assert_close(logits_of(packed.model), logits_of(loaded.model), atol=1e-4, rtol=1e-4)
    assert ("first second" in shares(packed)) is not changed


def test_a_layer_that_is_called_alone_or_with_another_input_has_its_own_result():
    loaded = wrap_model(tiny_model("llama"))
    layers = [each.model.model.layers[0].self_attn for each in (loaded, pack(loaded))]
    one, other = torch.randn(2, 1, 3, layers[0].q_proj.in_features)
    with torch.inference_mode():
        for name, rows in zip("qkvvkkqqv", (one, one, other, other, one, one, one, other, other), strict=True):
            expected, found = (getattr(layer, f"{name}_proj")(rows) for layer in layers)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
