"""MTP layers in a target's own checkpoint, under the names that are published, against transformers' own code."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig, LogitsProcessorList
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

from specdec_core import Decoder, generate_with, load_model
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import ModelError
from specdec_core.models import wrap_model
from specdec_core.testing import DrafterKit
from specdec_core.testing.harness.state import model_state
from specdec_core.testing.harness.tiny_target import TinyTarget
from specdec_drafters.mtp import MtpDrafter, read_own_mtp
from specdec_drafters.settings import MtpConfig
from tests import lossless
from tests.conformance import failure_of, kit_of
from tests.drafters.own_mtp import described, published, random_layer, write
from tests.models.hybrids import hybrid
from tests.multimodal import IMAGE, build, prompts
from tests.pairwise import some
from tests.toys import Gamma

pytestmark = pytest.mark.skipif(not hasattr(MtpModel, "forward_layer"), reason="needs transformers 5.20")
PROMPTS = [[2, 3, 4, 5, 6, 7], [8, 7], [9, 10, 11]]
OWN = {"name": "mtp", "model": "target"}
NORM = "mtp.norm.weight"


@torch.inference_mode()
def drafted(model, generator, tokens, count):
    """What transformers drafts: first by its own generator, then by repeating the layer."""
    output = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False)
    ids, positions = torch.tensor([tokens]), torch.arange(len(tokens))[None]
    first = copy.deepcopy(generator).get_candidates(ids, {"position_ids": positions}, output, False, 0)[0][:, -1:]
    state, text = output.hidden_states[-1], ids[:, 1:]
    for _ in range(count):
        read = generator.mtp_model.forward_layer(0, state, torch.arange(text.shape[1])[None], None, text)
        text = torch.cat([text, model.lm_head(read[:, -1:]).argmax(-1)], 1)
        state = torch.cat([state, read[:, -1:]], 1)
    assert not count or text[0, len(tokens) - 1] == first
    return text[0, len(tokens) - 1 :].tolist()


CASES = [("qwen3_5", False), ("qwen3_next", False), ("qwen3_5_moe", True), ("deepseek_v3", False)]
CASES += [("qwen3_5_moe", False)]


@pytest.mark.parametrize(("family", "fused"), some(CASES, 3))
def test_greedy_drafts_are_those_of_transformers(family, fused, tmp_path):
    loaded, trace = load_model(write(tmp_path, family, fused=fused)), TraceObserver()
    model, texts = described(loaded.model), [list(prompt) for prompt in PROMPTS]
    generator = MTPCandidateGenerator(model, GenerationConfig(do_sample=False), {}, LogitsProcessorList())
    decoder = Decoder(loaded, OWN, gamma=3, temperature=0, strict=True)
    decoder.generate(PROMPTS, max_new_tokens=9, ignore_eos=True, observers=[trace])
    for report in trace.reports:
        for text, draft, new in zip(texts, report.draft_tokens, report.outcome.committed, strict=True):
            assert list(draft) == drafted(model, generator, text, len(draft))
            text += new
    assert len({draft for report in trace.reports for draft in report.draft_tokens}) > 9


@pytest.fixture(scope="module", params=some(["qwen3_5", "deepseek_v3"], 1))
def small(request, tmp_path_factory):
    """A target whose continuations can be enumerated."""
    family, sharpness = request.param, {"qwen3_5": 2.0, "deepseek_v3": 0.8}[request.param]
    return load_model(write(tmp_path_factory.mktemp(family), family, lossless.VOCAB, sharpness))


def test_drafts_leave_the_distribution_as_it_is(small):
    settings = lossless.SETTINGS["temperature-0.7"]
    decoder = Decoder(small, OWN, gamma=Gamma(3, 1, 2), sampling=settings, strict=True)
    expected = lossless.enumerate_continuations(small, settings)
    assert lossless.doubled_p_value(decoder, expected, 1600) > 1e-4


CHECKS = ("hidden_states_declared", "rollback", "rows_independent", "draft_sampled_from_q", "inputs_unchanged")


@pytest.mark.parametrize("check", CHECKS)
def test_the_drafter_passes_the_kit(small, check):
    state = model_state(small.model, small.tokenizer, small.features)
    target = TinyTarget(small, small.info(), state)
    said = {"config": MtpConfig, "targets": property(lambda kit: (target,))}
    kit = kit_of(DrafterKit, lambda info: MtpDrafter(MtpConfig(model="target"), info), **said)
    assert failure_of(kit, check) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop": (NORM,)}, "missing are .*post_norm"),
        ({"mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1)}, "unknown .*weight_scale_inv"),
        ({NORM: torch.ones(5)}, "another shape .*post_norm"),
        ({"config": {"mtp_num_hidden_layers": 2}}, "has 2 MTP layers"),
        ({"config": {"mtp_layer_types": ["linear_attention"]}}, "has linear_attention"),
        ({"config": {"mtp_use_dedicated_embeddings": True}}, "embeddings of its own.* has none"),
        ({"mtp.shared_head.weight": torch.ones(40, 32)}, "unknown .*shared_head.weight"),
    ],
)
def test_layers_that_cannot_be_built_are_refused(changes, said, tmp_path):
    with pytest.raises(ModelError, match=said):
        read_own_mtp("target", load_model(write(tmp_path, "qwen3_5", **changes)).info())


def test_a_copy_without_the_layer_drafts_with_that_of_its_base(tmp_path):
    base = load_model(write(tmp_path / "base", "qwen3_5"))
    base.model.save_pretrained(tmp_path / "copy")
    tuned = load_model(str(tmp_path / "copy"))
    with pytest.raises(ModelError, match="it has none"):
        read_own_mtp("target", tuned.info())
    with pytest.raises(ModelError, match="made in memory"):
        read_own_mtp("target", wrap_model(hybrid("qwen3_5")).info())
    head, layers = read_own_mtp("base", tuned.info(tmp_path))
    assert layers == (2,)
    assert head.embed_tokens.weight.data_ptr() == tuned.model.get_input_embeddings().weight.data_ptr()
    own, _ = read_own_mtp("target", base.info())
    assert torch.equal(head.layer.eh_proj.weight, own.layer.eh_proj.weight)


def test_embeddings_of_the_layer_are_read_beside_those_of_the_target(tmp_path):
    given = torch.randn(40, 32)
    config, tensors = {"mtp_use_dedicated_embeddings": True}, {"mtp.embed_tokens.weight": given}
    target = load_model(write(tmp_path, "qwen3_5", config=config, **tensors))
    kept = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    head, _ = read_own_mtp("target", target.info())
    assert torch.equal(head.embed_tokens.weight, given)
    assert all(torch.equal(weight, kept[name]) for name, weight in target.model.state_dict().items())


def test_a_quantized_layer_and_an_offloaded_target_are_refused(tmp_path):
    target = load_model(write(tmp_path / "target", "qwen3_5"))
    scaled = {"mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1)}
    other = write(tmp_path / "fp8", "qwen3_5", config={"quantization_config": {"quant_method": "fp8"}}, **scaled)
    with pytest.raises(ModelError, match=r"weight_scale_inv.*quantized: name the one that it was made from"):
        read_own_mtp(other, target.info())
    target.model.get_input_embeddings().to("meta")
    with pytest.raises(ModelError, match="are offloaded"):
        read_own_mtp("target", target.info())


@pytest.mark.slow
def test_it_drafts_after_images(tmp_path):
    torch.manual_seed(1)
    build("qwen3_5").save_pretrained(tmp_path)
    text = AutoModelForCausalLM.from_pretrained(tmp_path)
    path, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    save_file(load_file(path) | published(text, random_layer(text), False), path, {"format": "pt"})
    config["text_config"]["mtp_num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    given = prompts("qwen3_5", [[5, IMAGE, 6, 7], [4, 3]]) | {"max_new_tokens": 24, "do_sample": False}
    function = generate_with(drafter=OWN, gamma=3, strict=True)
    assert model.generate(**given, custom_generate=function).equal(model.generate(**given))
    assert 0 < function.metrics.accepted < function.metrics.drafted
