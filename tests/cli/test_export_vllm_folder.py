"""`specdec export --to vllm` writes a folder for drafters that vLLM runs itself, and it drafts as before."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_core.interface import TargetInfo
from specdec_core.models import load_model, model_folder
from specdec_core.registry.shipped import shipped_file
from specdec_drafters.dflash import DFlashDrafter
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.parallel import ParallelDrafter, with_mask_token
from specdec_drafters.settings import DFlashConfig, Eagle3Config, ParallelConfig
from tests.catalogue import write_random_dflash, write_random_eagle3
from tests.commands import run_command
from tests.drafters.speculator_heads import PROMPTS, Bench, V, target_for
from tests.drafters.support import info_for, request_for

DRAFT_MODEL = {"name": "transformer", "model": "builtin:drafter"}
TEXT = [[12, 300, 7, 44], [5, 9]]


def run(folder, drafter, *more, says=""):
    """Export a drafter, given as YAML; return the keys of the speculative config that is printed."""
    words = ["export", str(folder), "--to", "vllm", "--drafter", json.dumps(drafter), *more]
    done = run_command(*words)
    assert done.exit_code == 0, done.output
    assert says in done.output
    command = shlex.split(next(line for line in done.output.splitlines() if "vllm serve" in line))
    assert command[:-1] == ["vllm", "serve", "MODEL", "--speculative-config"]
    return json.loads(command[-1])


def failure(folder, drafter):
    """What an export says that must fail."""
    done = run_command("export", str(folder), "--to", "vllm", "--drafter", json.dumps(drafter))
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def test_a_draft_model_is_copied(tmp_path):
    keys = run(tmp_path / "draft", DRAFT_MODEL, "--gamma", "5")
    assert keys == {"method": "draft_model", "model": str(tmp_path / "draft"), "num_speculative_tokens": 5}
    ours = model_folder("builtin:drafter")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "draft" / name).read_bytes() == (ours / name).read_bytes()
    assert "--overwrite replaces it" in failure(tmp_path / "draft", DRAFT_MODEL)
    run(tmp_path / "draft", DRAFT_MODEL, "--overwrite")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """The folder of a model with a mask token behind its vocabulary, as the trainer makes one."""
    folder = tmp_path_factory.mktemp("models") / "masked"
    loaded = with_mask_token(load_model("builtin:drafter", device="cpu", packed=False))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        weight = loaded.model.get_input_embeddings().weight
        weight[-1] = weight.std() * torch.randn(weight.shape[1], generator=generator)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def drafted(folder):
    """q of drafts of four tokens by a parallel drafter in a folder, `[B, 4, V]`."""
    drafter = ParallelDrafter(ParallelConfig(model=str(folder), packed=False), TargetInfo(4096, device="cpu"))
    session = drafter.open(info_for(len(TEXT), 4096))
    return session.propose(request_for(TEXT, [4] * len(TEXT))).q.probabilities


def test_a_mask_token_behind_the_vocabulary_takes_the_place_of_a_token_that_no_text_has(masked, tmp_path):
    loaded = json.loads((masked / "config.json").read_text())
    (masked / "config.json").write_text(json.dumps(loaded | {"pard_depth": 6}))
    keys = run(tmp_path / "draft", {"name": "parallel", "model": str(masked)})
    where = {"method": "draft_model", "model": str(tmp_path / "draft")}
    assert keys == {**where, "num_speculative_tokens": 6, "parallel_drafting": True}
    config = json.loads((tmp_path / "draft/config.json").read_text())
    before = json.loads((masked / "config.json").read_text())
    assert (before["vocab_size"], before["pard_token"]) == (4097, 4096)
    assert config["vocab_size"] == 4096
    assert load_model(tmp_path / "draft").tokenizer.decode([config["pard_token"]]) == "\N{REPLACEMENT CHARACTER}"
    torch.testing.assert_close(drafted(tmp_path / "draft"), drafted(masked))


def test_without_a_tokenizer_no_token_can_give_its_place(masked, tmp_path):
    load_model(masked, packed=False).model.save_pretrained(tmp_path / "bare")
    said = failure(tmp_path / "draft", {"name": "parallel", "model": str(tmp_path / "bare")})
    assert "its mask token behind the vocabulary, as token 4096" in said
    assert not (tmp_path / "draft").exists()


# What vLLM's config of a head is made of; the layer's keys are those of its model.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size")


def test_a_head_is_written_with_the_keys_that_vllm_reads(tmp_path):
    keys = run(tmp_path / "head", {"name": "eagle3", "model": "builtin:eagle3"})
    assert keys == {"method": "eagle3", "model": str(tmp_path / "head"), "num_speculative_tokens": 5}
    config = json.loads((tmp_path / "head/config.json").read_text())
    assert {"speculators_model_type", "transformer_layer_config", *FLAGS} <= config.keys()
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    ours = shipped_file("builtin:eagle3", "draft head", "config.json").parent
    before, after = (load_file(folder / "model.safetensors") for folder in (ours, tmp_path / "head"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("mask", [None, V - 1])
def test_an_exported_head_drafts_as_before(tmp_path, mask):
    flags = {"fc_norm": True, "norm_before_residual": True, "mask_token_id": mask}
    bench = Bench(tmp_path / "head", layers=(0, 2), **flags)
    keys = run(tmp_path / "exported", {"name": "eagle3", "model": str(tmp_path / "head")})
    assert keys.get("parallel_drafting") == (None if mask is None else True)
    config = json.loads((tmp_path / "exported/config.json").read_text())
    layer = config["transformer_layer_config"]
    assert (layer["num_aux_hidden_states"], layer["fc_norm"], config["norm_before_residual"]) == (2, True, True)
    exported = Eagle3Drafter(Eagle3Config(model=str(tmp_path / "exported")), bench.target.info())
    assert exported.hidden_layers == bench.drafter.hidden_layers
    q = [
        drafter.open(bench.info).propose(bench.request(PROMPTS, [3] * 3, seed=7)).q.probabilities
        for drafter in (bench.drafter, exported)
    ]
    assert torch.equal(*q)


FULL, WINDOW = "full_attention", "sliding_attention"


@pytest.mark.parametrize(("kinds", "written"), [([FULL, FULL], True), ([WINDOW, WINDOW], False)])
def test_an_exported_block_head_has_the_keys_whose_defaults_differ(tmp_path, kinds, written):
    target = target_for()
    layer = {"layer_types": kinds, "sliding_window": 4, "use_sliding_window": True}
    write_random_dflash(tmp_path / "head", target, layers=(0, 2), layer=layer)
    path = tmp_path / "head/config.json"
    keys = json.loads(path.read_text())
    del keys["sliding_window_non_causal"]  # False here, true in vLLM, which reads it of full attention, too
    path.write_text(json.dumps(keys))
    keys = run(tmp_path / "exported", {"name": "dflash", "model": str(tmp_path / "head")})
    assert keys == {"method": "dflash", "model": str(tmp_path / "exported"), "num_speculative_tokens": 4}
    config = json.loads((tmp_path / "exported/config.json").read_text())
    assert config["sliding_window_non_causal"] is written
    assert config["aux_hidden_state_layer_ids"] == [0, 2]
    assert config["transformer_layer_config"]["hidden_act"] == "silu"
    configs = [DFlashConfig(model=str(tmp_path / name)) for name in ("head", "exported")]
    before, after = (DFlashDrafter(config, target.info()).head.state_dict() for config in configs)
    assert all(torch.equal(*pair) for pair in zip(before.values(), after.values(), strict=True))


def test_a_dflash_head_of_which_vllm_knows_no_attention_is_refused(tmp_path):
    layer = {"layer_types": [FULL, WINDOW], "sliding_window": 4, "use_sliding_window": True}
    write_random_dflash(tmp_path / "head", target_for(), layers=(0, 2), layer=layer)
    said = failure(tmp_path / "exported", {"name": "dflash", "model": str(tmp_path / "head")})
    assert "one rule for all layers" in said


def test_an_mtp_layer_needs_no_files(tmp_path):
    keys = run(tmp_path / "mtp", {"name": "mtp", "model": "target"}, says="vLLM reads the target's checkpoint")
    assert keys == {"method": "mtp", "num_speculative_tokens": 1}
    drafter = {"name": "assistant", "model": "owner/its-assistant"}
    keys = run(tmp_path / "mtp", drafter, says="vLLM reads owner/its-assistant")
    assert keys == {"method": "mtp", "model": "owner/its-assistant", "num_speculative_tokens": 1}
    assert not list(tmp_path.iterdir())
    (tmp_path / "config.json").write_text('{"text_config": {"mtp_num_hidden_layers": 3}}')
    keys = run(tmp_path / "mtp", {"name": "mtp", "model": str(tmp_path)})
    assert keys == {"method": "mtp", "model": str(tmp_path), "num_speculative_tokens": 3}


NO_OUTPUT = "lm_head.weight for its draft vocabulary of 26 tokens"


@pytest.mark.parametrize(
    ("kind", "lacks"), [("eagle3", "o_proj.weight"), ("dflash", "o_proj.weight"), ("eagle3", NO_OUTPUT)]
)
def test_an_incomplete_head_is_not_said_to_be_written(tmp_path, kind, lacks):
    write = write_random_eagle3 if kind == "eagle3" else write_random_dflash
    write(tmp_path / "head", target_for())
    path = tmp_path / "head/model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if lacks.split()[0] not in name}, path)
    assert lacks in failure(tmp_path / "exported", {"name": kind, "model": str(tmp_path / "head")})
    assert not (tmp_path / "exported").exists()
