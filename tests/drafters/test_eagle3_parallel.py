"""The eagle3 drafter with a head that drafts in one pass (P-EAGLE): its logits, and that masks leave no trace."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError, TokenTree
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.settings import Eagle3Config
from tests.catalogue import write_random_eagle3
from tests.drafters.speculator_heads import CASES, DATA, PROMPTS, Bench, V, target_for
from tests.drafters.support import commit, commit_paths
from tests.toys import Gamma

MASK = V - 1
HEADS = DATA / "peagle"


@torch.inference_mode()
def alone(head, tokens, states, depth):
    """The logits `[depth, V]` after tokens that are read with these combined states, without a cache."""
    ids = torch.tensor([[*tokens, *[MASK] * (depth - 1)]])
    masked = head.combine(head.mask_hidden).expand(1, depth - 1, -1)
    return head(ids, torch.cat([states, masked], 1)).logits[0, -depth:]


@pytest.mark.parametrize("case", CASES["peagle"])
def test_the_logits_are_those_of_the_speculators_package(case):
    head, layers = read_eagle3(str(HEADS / case), target_for().info())
    assert (layers, head.shape.mask_token_id) == ((0, 1, 2), MASK)
    given, reference = (load_file(HEADS / case / f"{name}.safetensors") for name in ("inputs", "reference"))
    tokens, states = given["input_ids"][0].tolist(), head.combine(given["hidden_states"])
    depths, count = reference["logits"].shape[:2]
    others = torch.ones(V, dtype=torch.bool).index_fill_(0, head.token_ids, value=False)
    for anchor in range(count):
        end = anchor + 1
        logits = alone(head, tokens[:end], states[:, :end], depths)
        known = min(depths, count - anchor)  # the package trains on no token beyond the text
        expected = reference["logits"][:known, anchor]
        torch.testing.assert_close(logits[:known, head.token_ids], expected, atol=1e-4, rtol=1e-4)
        assert (logits[:, others] == float("-inf")).all()


class ParallelBench(Bench):
    """The same for a head that drafts in one pass."""

    def __init__(self, folder, **shape):
        super().__init__(folder, mask_token_id=MASK, **{"layers": (0, 2, 4), **shape})

    def q(self, tokens, depth):
        """q at each depth of a draft after the committed tokens, at temperature 1: `[depth, V]`."""
        states = self.states(tokens[:-1])
        read = torch.cat([states[layer] for layer in self.drafter.hidden_layers], -1)
        return alone(self.drafter.head, tokens[1:], self.drafter.head.combine(read)[None], depth).softmax(-1)

    def check(self, session, tokens, budget=(4, 4, 4), seed=5):
        """Compare what a session drafts with what the head says by itself; return the proposal."""
        proposal = session.propose(self.request(tokens, budget, seed))
        assert proposal.lengths == tuple(budget)
        for row, most in enumerate(budget):
            if most:
                q = proposal.q.probabilities[row, :most]
                torch.testing.assert_close(q, self.q(tokens[row], most), atol=1e-5, rtol=1e-3)
        return proposal


@pytest.fixture(params=[{}, {"fc_norm": True, "norm_before_residual": True}], ids=["default", "norms"])
def bench(request, tmp_path):
    return ParallelBench(tmp_path / "head", **request.param)


def test_q_of_each_depth_is_the_heads_own_through_drafts_commits_and_ragged_rows(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    steps = [((3, 4, 3), (3, 0, 0)), ((2, 4, 0), (0, 4, 0)), ((4, 1, 3), (2, 1, 0)), ((1, 1, 1), (1, 1, 1))]
    for seed, (budget, kept) in enumerate(steps):
        proposal = bench.check(session, tokens, budget, 10 * seed)
        commit(session, tokens, proposal, kept, last=20 + seed)
    bench.check(session, tokens)


def test_all_nodes_at_a_depth_come_from_one_mask_and_none_stays(bench):
    shape = TokenTree((-1, -1, 1, 1, 2))
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    budget = (5, 2, 4)
    proposal = session.propose(bench.request(tokens, budget, shape=shape))
    assert proposal.lengths == budget
    for row, count in enumerate(budget):
        q = bench.q(tokens[row], 3)
        for node, depth in {0: 0, 2: 1, 4: 2}.items():  # first children: siblings are drawn without replacement
            if node < count:
                drawn = proposal.q.probabilities[row, node]
                torch.testing.assert_close(drawn, q[depth], atol=1e-5, rtol=1e-3)
    commit_paths(session, tokens, proposal, shape)
    bench.check(session, tokens)


def test_a_draft_takes_one_forward_pass(tmp_path):
    bench, passes = ParallelBench(tmp_path / "head"), []
    bench.drafter.head.register_forward_hook(lambda *_: passes.append(1))
    decoder = Decoder(bench.target, bench.drafter, gamma=Gamma(6), strict=True)
    metrics = decoder.generate([3, 4, 5], max_new_tokens=30, seed=0).metrics
    drafting = metrics.target_calls - 1  # the first step has no states yet
    assert len(passes) == drafting
    assert metrics.drafted > 5 * drafting


def edited(folder, change):
    """Change the config of a head and return the head's folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return str(folder)


def test_masks_stay_within_the_positions_of_the_head(tmp_path):
    bench = ParallelBench(tmp_path / "head")
    model = edited(
        tmp_path / "head", lambda config: config["transformer_layer_config"].update(max_position_embeddings=6)
    )
    bench.drafter = Eagle3Drafter(Eagle3Config(model=model), bench.target.info())
    tokens = [list(range(2, 2 + length)) for length in (4, 5, 9)]
    budget = bench.drafter.clipped(tokens, [8] * 3)
    assert budget == (4, 3, 0)
    bench.check(bench.drafter.open(bench.info), tokens, budget)


@pytest.mark.parametrize("token", [None, V, -1])
def test_a_mask_token_that_is_no_token_is_refused(tmp_path, token):
    write_random_eagle3(tmp_path / "head", target_for(), mask_token_id=MASK)
    model = edited(tmp_path / "head", lambda config: config.update(mask_token_id=token))
    with pytest.raises(ModelError, match=rf"the mask_token_id {token}, but the token ids 0 to {V - 1}"):
        read_eagle3(model, target_for().info())


def test_masks_need_their_state_and_heads_without_masks_have_none(tmp_path):
    target = target_for()
    write_random_eagle3(tmp_path / "head", target, mask_token_id=MASK)
    model = edited(tmp_path / "head", lambda config: config.update(speculators_model_type="eagle3"))
    with pytest.raises(ModelError, match=r"has mask_hidden, which its config\.json does not ask for"):
        read_eagle3(model, target.info())
    edited(tmp_path / "head", lambda config: config.update(speculators_model_type="peagle"))
    path = tmp_path / "head" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != "mask_hidden"}, path)
    with pytest.raises(ModelError, match="lacks the weights mask_hidden"):
        read_eagle3(model, target.info())
