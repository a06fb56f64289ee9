"""The quantized drafter: weights and activations are rounded as they should; q is what the copy computes."""

import pytest
import torch
from torch import nn

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import load_model, pack, quantize, wrap_model
from specdec_core.models.fast.integer_products import (
    GROUP,
    Int4Product,
    Int8Product,
    activation_steps,
    int8_product,
    round_to_int4,
    round_to_int8,
)
from specdec_core.models.fast.packed_linear import PackedLinear, SharedProduct
from specdec_core.models.fast.products import NativeProduct
from specdec_core.testing.harness.state import changed_state, model_state
from specdec_drafters.quantized import QuantizedDrafter
from specdec_drafters.settings import QuantizedConfig
from tests.drafters.support import (
    PROMPTS,
    SOURCES,
    assert_q_through_drafts_commits_and_ragged_rows,
    info_for,
    names_of,
    request_for,
)
from tests.tiny import tiny_model
from tests.toys import Gamma

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

V = 40


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer_of(kind, outputs, inputs, bias=True):
    return packed(kind, normal(outputs, inputs), normal(outputs, seed=1) if bias else None)


def packed(kind, weight, bias=None):
    """Return a layer with a product of some kind."""
    parameters = [None if each is None else nn.Parameter(each, requires_grad=False) for each in (weight, bias)]
    return PackedLinear(*parameters, SharedProduct(kind(weight, bias), [len(weight)]))


def products(model):
    """Return the kind of the product of each packed layer."""
    return [type(layer.product) for layer in model.modules() if isinstance(layer, PackedLinear)]


def dequantized(layer):
    """Return the weights that a layer stands for, `[out, in]`, from the rounded values themselves."""
    if not isinstance(layer.product, Int4Product):
        values, scales = round_to_int8(layer.weight)
        return values.float() * scales[:, None]
    values, groups = round_to_int4(layer.weight)
    scales, zeros = groups.float().transpose(0, 1).unbind(-1)
    return ((values.view(*scales.shape, GROUP) - 8) * scales[..., None] + zeros[..., None]).flatten(1)


def test_8_bits_are_the_nearest_of_255_values():
    weight = normal(7, 12)
    weight[3] = 0
    values, scales = round_to_int8(weight)
    assert values.dtype == torch.int8
    assert values.abs().amax(1).tolist() == [127, 127, 127, 0, 127, 127, 127]
    assert ((values * scales[:, None] - weight).abs() <= scales[:, None] / 2 + 1e-7).all()


def test_4_bits_are_the_nearest_of_16_values_of_a_group():
    weight = normal(16, 3 * GROUP)
    weight[2, :GROUP] = 0.25
    layer = packed(Int4Product, weight)
    values, _ = round_to_int4(weight)
    assert set(values.unique().tolist()) <= set(range(16))
    groups = weight.view(16, 3, GROUP)
    step = (groups.amax(-1) - groups.amin(-1))[..., None] / 15
    error = (dequantized(layer).view_as(groups) - groups).abs()
    # Half a step, and what bfloat16 takes from the scale and the zero point.
    assert (error <= 0.5 * step + 0.01 * groups.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize(("kind", "tolerance"), [(int8_product, 1e-5), (Int8Product, 1e-5), (Int4Product, 6e-3)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 40)])
def test_a_layer_multiplies_with_the_rounded_weights(kind, tolerance, bias, shape):
    layer = layer_of(kind, 48, 64, bias=bias)
    rows = normal(*shape, 64, seed=2)
    rows[0, 0] *= 100
    read = rows
    if kind is not Int4Product:
        own = isinstance(layer.product, NativeProduct)
        groups = rows.unflatten(-1, (-1, GROUP if own else 64))
        steps = (127 if own else activation_steps()) / groups.abs().amax(-1, keepdim=True)
        read = ((groups * steps).round() / steps).flatten(-2)
    expected = nn.functional.linear(read, dequantized(layer), layer.bias)
    found = layer(rows)
    assert found.shape == (*shape, 48)
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("kind", [int8_product, Int8Product])
def test_a_row_of_8_bits_depends_on_no_other_row(kind):
    layer = layer_of(kind, 48, 64)
    rows = normal(9, 64, seed=2)
    rows[4] *= 1000
    rows[5] = 0
    together = layer(rows)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in rows]))
    torch.testing.assert_close(together[5], layer.bias)


def copy_of(target, bits):
    """Return the copy of a target, which is not changed, and how much their distributions overlap."""
    state = model_state(target.model, None)
    copied = quantize(target, bits)
    assert changed_state(state, target.model, None) == []
    text = [1, 9, 10, 11, 12]
    names = names_of(text, text if target.encoder_decoder else None)
    with torch.inference_mode():
        p, q = (each.model(**names, use_cache=False).logits.softmax(-1) for each in (target, copied))
    return copied, torch.minimum(p, q).sum(-1).mean()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "t5", "bart"])
def test_the_copy_is_close_to_the_target_which_is_not_changed(family, bits):
    copied, overlap = copy_of(wrap_model(tiny_model(family, 48)), bits)
    least = 0.6 if bits == 4 else 0.97 if activation_steps() == 127 else 0.93
    assert least < overlap < 1 - 1e-6
    assert not any(type(layer) is nn.Linear for layer in copied.model.modules())
    assert (Int4Product in products(copied.model)) == (bits == 4)
    assert type(copied.model.get_output_embeddings().product) is not Int4Product


def test_weights_are_shared_with_the_target_packed_or_not():
    plain = load_model("builtin:target", packed=False)
    for target in (plain, pack(plain)):
        copied = quantize(target, 4)
        ours = {id(weight) for weight in plain.model.parameters()}
        assert {id(weight) for weight in copied.model.parameters()} == ours
        assert copied.model.model.norm is not None
        # Nothing that was trained or recorded for the original weights is taken for the copy's.
        assert copied.features.fingerprint() != plain.features.fingerprint()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_q_is_the_copys_own_through_drafts_commits_and_ragged_rows(family, bits):
    target = wrap_model(tiny_model(family, V))
    drafter = QuantizedDrafter(QuantizedConfig(bits=bits), target.info())

    def q_of(tokens, source):
        with torch.inference_mode():
            return drafter.loaded.model(**names_of(tokens, source), use_cache=False).logits[0, -1].softmax(-1)

    sources = SOURCES if target.encoder_decoder else None
    # A last bit may round an activation the other way.
    assert_q_through_drafts_commits_and_ragged_rows(drafter, q_of, V, sources, atol=0.02, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_the_built_in_target_accepts_most_of_its_drafts(bits):
    target = load_model("builtin:target")
    drafter = QuantizedDrafter(QuantizedConfig(bits=bits), target.info())
    sampling = SamplingSettings(temperature=1)
    decoder = Decoder(target, drafter, gamma=Gamma(4), sampling=sampling, strict=True)
    result = decoder.generate(["def main(argv):\n", "import os\n"], max_new_tokens=40, seed=0)
    assert result.metrics.alpha > (0.93 if bits == 8 else 0.85)


@pytest.fixture
def elsewhere(monkeypatch):
    """Make the copy as on a device without the products of this module."""
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_torchao_makes_the_copy_elsewhere(family):
    pytest.importorskip("torchao")
    target = wrap_model(tiny_model(family, 48))
    assert 0.97 < copy_of(target, 8)[1] < 1 - 1e-6
    drafter = QuantizedDrafter(QuantizedConfig(), target.info())
    sources = SOURCES if target.encoder_decoder else None
    assert drafter.open(info_for(3, 48, sources)).propose(request_for(PROMPTS, [3, 2, 1])).lengths == (3, 2, 1)


def test_8_bits_are_those_of_torchao():
    quantization = pytest.importorskip("torchao.quantization")
    layer = nn.Sequential(nn.Linear(64, 48, bias=False))
    weight = layer[0].weight.detach().clone()
    quantization.quantize_(layer, quantization.Int8DynamicActivationInt8WeightConfig())
    values, scales = round_to_int8(weight)
    theirs = layer[0].weight
    assert (theirs.qdata.int() - values.int()).abs().max() <= 1
    torch.testing.assert_close(theirs.scale.flatten().float(), scales, rtol=1e-2, atol=0)
    rows = normal(3, 64)
    ours = Int8Product(weight, None)(rows)
    with torch.inference_mode():
        assert (layer(rows) - ours).norm() <= 0.02 * ours.norm()
