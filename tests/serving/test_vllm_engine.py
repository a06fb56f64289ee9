"""vLLM itself with every drafter that exports: plain texts, and the accepted tokens of each step as here."""

import logging
from collections import Counter
from pathlib import Path

import pytest
import torch

from specdec_core.interface import DeterministicDrafter, PluginConfig
from specdec_core.interface.settings import SamplingSettings
from specdec_core.models import load_model, model_folder, wrap_model
from specdec_core.registry.registry import default_registry
from specdec_core.serving.vllm import VllmProposer
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from tests.catalogue import write_random_dflash, write_random_eagle3
from tests.drafters import assistants, own_mtp
from tests.lossless import PROMPT, VOCAB, enumerate_continuations, p_value
from tests.models import hybrids
from tests.serving.vllm_engine import engine, exchange, expected, export, served, texts, watch
from tests.tiny import tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]  # vLLM's own warnings

SMALL = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 64}  # preempts, and reads prompts in chunks
NGRAM = {"name": "ngram", "text": __file__, "order": 2}
CUSTOM = {
    "prompt-copy": "prompt-copy",
    "ngram": NGRAM,
    "chain": {"name": "chain", "drafters": ["prompt-copy", NGRAM]},
    "datastore": {"name": "datastore", "text": "builtin:stdlib", "max_bytes": 200_000},
    "random": "random",
    "suffix": "suffix",
}
OWN = {
    "transformer": {"name": "transformer", "model": "builtin:drafter"},
    "parallel": {"name": "parallel", "model": "builtin:parallel"},
    "eagle3": {"name": "eagle3", "model": "builtin:eagle3"},
}


@pytest.fixture(scope="module")
def target():
    return load_model("builtin:target", device="cpu")


@pytest.fixture(scope="module")
def prompts(target):
    given = read_prompts(PromptsConfig(builtin="heldout", limit=12), Path())
    return [target.tokenizer(one.text).input_ids[:128] for one in given]


@pytest.fixture(scope="module")
def plain(prompts):
    """vLLM's tokens without drafts."""
    with engine(model_folder("builtin:target")) as llm:
        return [text.tokens for text in texts(served(llm, prompts))]


@pytest.fixture(scope="module")
def custom(tmp_path_factory, plain):
    """An engine whose proposer can be exchanged."""
    config = export(tmp_path_factory.mktemp("exported"), "prompt-copy")
    with engine(model_folder("builtin:target"), config, **SMALL) as llm:
        yield llm


def check(llm, drafter, target, prompts, plain):
    """Check the texts and the steps of a drafter, one request at a time, and its texts in a batch."""
    found = [texts(served(llm, [prompt]))[0] for prompt in prompts]
    assert found == expected(target, drafter, prompts)
    assert [text.tokens for text in found] == plain
    together = served(llm, prompts)
    assert sum(output.metrics.num_preemptions for output in together)
    assert [text.tokens for text in texts(together)] == plain


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_proposers(name, custom, target, prompts, plain, tmp_path):
    exchange(custom, export(tmp_path, CUSTOM[name])["model"])
    check(custom, CUSTOM[name], target, prompts, plain)


class Failing(DeterministicDrafter):
    """Copies the last tokens, and fails after some."""

    def draft(self, tokens, budget):
        if tokens[-1] % 5 == 0:
            raise RuntimeError("five")
        return tokens[-budget:]


class FailingProposer(VllmProposer):
    def make_drafter(self, target):
        return Failing(PluginConfig(), target)


def test_a_drafter_that_fails_costs_no_request(custom, prompts, plain, caplog):
    exchange(custom, f"{__name__}.FailingProposer")
    with caplog.at_level(logging.WARNING):
        found = texts(served(custom, prompts))
    assert [text.tokens for text in found] == plain
    assert sum(len(text.drafts) for text in found) > 20
    assert any(
        "five" in record.message and "goes on without a draft" in record.message for record in caplog.records
    )


@pytest.mark.parametrize("name", OWN)
def test_drafters_that_vllm_runs_itself(name, target, prompts, plain, tmp_path):
    config = export(tmp_path / "exported", OWN[name])
    with engine(model_folder("builtin:target"), config, **SMALL) as llm:
        check(llm, OWN[name], target, prompts, plain)


def test_every_drafter_that_needs_token_ids_alone_is_here():
    registry = default_registry()
    assert set(CUSTOM) == {
        name for name in registry.names("drafter") if registry.drafter_config(name).token_ids_only
    }


HEADS = {
    "eagle3": (write_random_eagle3, {}),
    "p-eagle": (write_random_eagle3, {"mask_token_id": 23}),
    "dflash": (write_random_dflash, {}),
}


def normalized(self, keys):
    """Scale the keys `[layers, N, H, D]` by each layer's weights; vLLM 0.32 takes the first layer's on a CPU."""
    scale = keys.pow(2).mean(-1, keepdim=True).add(self._rms_norm_eps).rsqrt()
    return keys * scale * self._k_norm_weights[:, None, None]


@pytest.mark.parametrize("name", HEADS)
def test_random_heads_draft_the_same_tokens(name, tmp_path, monkeypatch):
    where = "vllm.model_executor.models.qwen3_dflash.DFlashQwen3Model._normalize_context_k"
    monkeypatch.setattr(where, normalized)
    model = tiny_model("llama", 24, 1, 1.0, head_dim=32)
    model.save_pretrained(tmp_path / "target")
    target = wrap_model(model)
    write, more = HEADS[name]
    write(tmp_path / "head", target, layer={"head_dim": 32}, **more)
    check_drafts(tmp_path, target, "dflash" if name == "dflash" else "eagle3", str(tmp_path / "head"))


def check_drafts(folder, target, name, model, exported=None):
    """Check that an exported drafter drafts in vLLM what it drafts here, in each step."""
    drafter = {"name": name, "model": model}
    config = export(folder / "exported", {"name": name, "model": exported or model})
    with engine(folder / "target", config, skip_tokenizer_init=True, max_model_len=128) as llm:
        seen = watch(llm)
        for prompt in ([*PROMPT[:length], length] for length in range(1, 6)):
            seen.clear()
            found, ours = texts(served(llm, [prompt])), expected(target, drafter, [prompt])
            assert found == ours
            assert seen[: len(ours[0].drafted)] == ours[0].drafted


def test_a_random_mtp_layer_drafts_the_same_tokens(tmp_path, monkeypatch):
    # On a CPU, vLLM 0.32 runs recurrent layers in bfloat16 alone, and Qwen3.5 needs torchvision. By Qwen's names,
    # transformers reads the layer from 5.20 on, which is too new for this vLLM.
    kind, sizes = hybrids.FAMILIES["qwen3_next"]
    attention = {"head_dim": 32, "layer_types": ["full_attention"] * 2}
    monkeypatch.setitem(hybrids.FAMILIES, "qwen3_next", (kind, sizes | attention))
    target = own_mtp.write(tmp_path / "target", "qwen3_next", 24, sharpness=1.0)
    layer = own_mtp.write(tmp_path / "layer", "qwen3_next", 24, sharpness=1.0, deepseek=True)
    check_drafts(tmp_path, load_model(target, device="cpu"), "mtp", layer, exported="target")


def test_a_random_assistant_drafts_the_same_tokens(tmp_path, monkeypatch):
    from vllm.model_executor.models.gemma4_mtp import Gemma4MultiTokenPredictor as Predictor

    # vLLM 0.32 gives drafts the position before that of transformers, and other windows.
    draft = Predictor.forward
    monkeypatch.setattr(Predictor, "forward", lambda self, ids, at, *more: draft(self, ids, at + 1, *more))
    wide = {"head_dim": 32, "global_head_dim": 32, "sliding_window": 128}
    monkeypatch.setattr(assistants, "SIZES", assistants.SIZES | wide)
    target = assistants.target_of(vocab=24, sharpness=1.0)
    target.model.save_pretrained(tmp_path / "target")
    check_drafts(tmp_path, target, "assistant", assistants.write(tmp_path / "assistant", vocab=24))


def expanded(x, cumulative, num_tokens, replace_from=0, replace_to=0):
    """Give each row's value to all its drafted positions, which vLLM 0.32 forgets on a CPU (its issue 55005)."""
    counts = cumulative.diff(prepend=cumulative.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)


@pytest.mark.parametrize("drafter", ["prompt-copy", {"name": "transformer"}], ids=["exported", "draft model"])
def test_samples_have_the_targets_distribution(drafter, tmp_path, monkeypatch):
    small = {
        name: tiny_model("llama", VOCAB, seed, 0.8, head_dim=32) for seed, name in enumerate(("target", "draft"))
    }
    for name, model in small.items():
        model.save_pretrained(tmp_path / name)
    if drafter != "prompt-copy":
        drafter = {**drafter, "model": str(tmp_path / "draft")}
    config = export(tmp_path / "exported", drafter)
    with engine(tmp_path / "target", config, skip_tokenizer_init=True, max_model_len=64) as llm:
        monkeypatch.setattr("vllm.v1.sample.rejection_sampler.expand_batch_to_tokens", expanded)
        outputs = served(llm, [list(PROMPT)] * 3000, temperature=1, max_tokens=4, ignore_eos=False)
    found = texts(outputs)
    steps = [step for text in found for step in text.drafts]
    accepted = sum(accepted for _, accepted in steps)
    assert len(steps) < accepted + len(steps) < sum(drafted for drafted, _ in steps)
    exact = enumerate_continuations(wrap_model(small["target"]), SamplingSettings(temperature=1), length=4)
    assert p_value(Counter(tuple(text.tokens) for text in found), exact) > 1e-4
