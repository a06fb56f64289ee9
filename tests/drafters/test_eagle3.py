"""The eagle3 drafter: the head of the speculators package, and what it reads as a text grows."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError, TokenTree
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import load_model
from specdec_core.registry.shipped import shipped_file
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_drafters.chain import ChainDrafter
from specdec_drafters.common.speculators import read_checkpoint
from specdec_drafters.dflash import read_dflash
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.mtp import MtpDrafter, read_mtp
from specdec_drafters.settings import ChainConfig, Eagle3Config
from tests.catalogue import write_random_eagle3, write_random_mtp
from tests.drafters.speculator_heads import CASES, DATA, PROMPTS, Bench, V, changed, check_logits, target_for
from tests.drafters.support import commit, commit_paths, info_for, rows_of
from tests.toys import Gamma

HEADS = DATA / "eagle3"


@pytest.mark.parametrize("case", CASES["eagle3"])
def test_the_logits_are_those_of_the_speculators_package(case):
    head, layers = read_eagle3(str(HEADS / case), target_for().info())
    assert layers == (0, 1, 2)
    given, reference = (load_file(HEADS / case / f"{name}.safetensors") for name in ("inputs", "reference"))
    check_logits(head, given, reference["logits"], head.token_ids)


LAYERS = {"layers": (0, 2, 4)}
BENCHES = {
    "default": LAYERS,
    "norms": LAYERS | {"norm_output": True, "fc_norm": True},
    # An MTP layer drafts as a head does.
    "mtp": {"write": write_random_mtp, "kind": MtpDrafter},
}


@pytest.fixture(params=BENCHES.values(), ids=BENCHES)
def bench(request, tmp_path):
    return Bench(tmp_path / "head", **request.param)


def test_q_is_the_heads_own_through_drafts_commits_and_ragged_rows(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    steps = [((3, 3, 3), (3, 0, 0)), ((2, 4, 0), (0, 4, 0)), ((4, 1, 3), (2, 1, 0)), ((1, 1, 1), (1, 1, 1))]
    for seed, (budget, kept) in enumerate(steps):
        proposal = session.propose(bench.request(tokens, budget, seed=10 * seed))
        assert proposal.lengths == budget
        for row, draft in enumerate(rows_of(proposal)):
            for position in range(len(draft)):
                expected = bench.q(tokens[row], draft[:position])
                torch.testing.assert_close(proposal.q.probabilities[row, position], expected, atol=1e-5, rtol=1e-3)
        commit(session, tokens, proposal, kept, last=20 + seed)
    bench.check(session, tokens)


def test_every_node_of_a_tree_reads_its_own_path(bench):
    shape = TokenTree((-1, -1, 1, 1, 2))
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    budget = (5, 2, 4)
    proposal = session.propose(bench.request(tokens, budget, shape=shape))
    assert proposal.lengths == budget
    for row, drawn in enumerate(proposal.tokens.tolist()):
        for node in range(budget[row]):
            path, at = [], shape.parents[node]
            while at >= 0:
                path, at = [drawn[at], *path], shape.parents[at]
            # Siblings are drawn without replacement, so that only the first child's q is the head's own.
            if shape.parents.index(shape.parents[node]) == node:
                expected = bench.q(tokens[row], path)
                torch.testing.assert_close(proposal.q.probabilities[row, node], expected, atol=1e-5, rtol=1e-3)
    commit_paths(session, tokens, proposal, shape)
    bench.check(session, tokens)


def test_no_drafts_beyond_the_positions_of_the_head(tmp_path):
    bench = Bench(tmp_path / "head")
    path = tmp_path / "head" / "config.json"
    config = json.loads(path.read_text())
    config["transformer_layer_config"]["max_position_embeddings"] = 6
    path.write_text(json.dumps(config))
    drafter = Eagle3Drafter(Eagle3Config(model=str(path.parent)), bench.target.info())
    tokens = [list(range(2, 2 + length)) for length in (4, 5, 9)]
    budget = drafter.clipped(tokens, [8] * 3)
    assert budget == (4, 3, 0)
    assert drafter.open(info_for(3, V)).propose(bench.request(tokens, budget)).lengths == budget


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": {"speculators_model_type": "dflash"}}, "speculators_model_type 'dflash'. Supported: eagle3"),
        (
            {"config": {"speculators_model_type": "gone"}},
            r"no speculators_model_type \(it is a Eagle3DraftModel\)\. .*`speculators convert`",
        ),
        ({"config": {"transformer_layer_config": {"model_type": "gpt2"}}}, "'gpt2'. Supported: llama, qwen3"),
        ({"config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 5]}}, "a target with 4 layers has 0 to 4"),
        ({"config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, r"fc.weight is \(16, 48\), but .* \(16, 32\)"),
        ({"config": {"target_hidden_size": 32}}, "hidden states of size 32; this one's is 16"),
        ({"drop": ["d2t"]}, "lacks the weights d2t"),
        ({"other.weight": torch.zeros(2)}, "has other.weight"),
        ({"d2t": -torch.arange(24)}, "d2t does not map the draft vocabulary"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(tmp_path, changes, said):
    with pytest.raises(ModelError, match=said):
        read_eagle3(changed(tmp_path / "head", "eagle3/llama", **changes), target_for().info())


def test_what_a_checkpoint_lacks_is_the_targets(tmp_path):
    target = target_for()
    lacking = changed(tmp_path / "head", "eagle3/llama", drop=["embed_tokens.weight", "lm_head.weight", "t2d"])
    head, _ = read_eagle3(lacking, target.info())
    assert torch.equal(head.embed_tokens.weight, target.features.input_embeddings)
    assert torch.equal(head.lm_head.weight, target.features.output_embeddings[head.token_ids])


@pytest.mark.parametrize(
    ("read", "head"), [(read_eagle3, "eagle3/llama"), (read_mtp, "mtp/qwen3"), (read_dflash, "dflash/qwen3")]
)
def test_weights_take_the_data_type_of_the_target_and_rotary_frequencies_do_not(read, head):
    target = target_for()
    target.model.to(torch.bfloat16)
    loaded, _ = read(str(DATA / head), target.info())
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert loaded.rotary_emb.inv_freq.dtype == torch.float32


def test_layers_that_are_not_named_are_chosen_by_their_number_and_logged(tmp_path, caplog):
    path = changed(tmp_path / "head", "eagle3/llama", config={"eagle_aux_hidden_state_layer_ids": None})
    assert read_eagle3(path, target_for(num_hidden_layers=8).info())[1] == (2, 4, 5)
    assert "taken are [2, 4, 5]" in caplog.text


def test_weights_may_be_in_shards_and_not_in_pickles(tmp_path):
    folder = Path(changed(tmp_path / "head", "eagle3/llama"))
    whole, _ = read_eagle3(str(folder), target_for().info())
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"head: .*no model\.safetensors.*pickle such as pytorch_model\.bin"):
        read_eagle3(str(folder), target_for().info())
    names = {name: f"{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(names.values()):
        save_file({name: tensor for name, tensor in tensors.items() if names[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    head, _ = read_eagle3(str(folder), target_for().info())
    assert all(torch.equal(tensor, head.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_in_a_chain_each_drafter_has_its_own_layers(tmp_path):
    """A chain asks for the layers of all its members."""
    target = target_for()
    heads = []
    for name, layers in (("one", (0, 1)), ("two", (1, 3))):
        write_random_eagle3(tmp_path / name, target, layers)
        heads.append(Eagle3Drafter(Eagle3Config(model=str(tmp_path / name)), target.info()))
    chain = ChainDrafter(ChainConfig(drafters=tuple(heads)), target.info())
    assert list(chain.hidden_layers) == [0, 1, 3]
    settings = GenerationSettings(max_new_tokens=24, ignore_eos=True, seed=2)
    alone, chained = (
        Decoder(target, drafter, gamma=Gamma(3), strict=True).generate([[2, 3]], settings)
        for drafter in (heads[0], chain)
    )
    assert chained.sequences[0].tokens == alone.sequences[0].tokens
    assert chained.metrics.accepted == alone.metrics.accepted > 0


@pytest.mark.slow
def test_the_head_that_ships_drafts_for_the_target_that_ships():
    target = load_model("builtin:target", device="cpu")
    drafter = Eagle3Drafter(Eagle3Config(model="builtin:eagle3"), target.info())
    path = shipped_file("builtin:eagle3", "draft head", "config.json").parent
    assert (path / "model.safetensors").stat().st_size < 5_000_000
    assert (path / "README.md").is_file()
    prompts = [one.text for one in read_prompts(PromptsConfig(builtin="heldout", limit=8), Path())]
    decoder = Decoder(target, drafter, gamma=Gamma(3), strict=True)
    metrics = decoder.generate(prompts, GenerationSettings(max_new_tokens=32, ignore_eos=True)).metrics
    assert metrics.block_efficiency > 1.4


def test_a_built_in_head_is_no_built_in_model():
    with pytest.raises(ModelError, match=r"unknown model 'builtin:eagle3'"):
        load_model("builtin:eagle3", device="cpu")
    with pytest.raises(ModelError, match=r"unknown draft head 'builtin:target'"):
        read_checkpoint("builtin:target", Path(), "eagle3")
