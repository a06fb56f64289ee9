"""The dflash drafter: the head of the speculators package, and what it keeps as a text grows."""

import pytest
import torch
from safetensors.torch import load_file

from specdec_core.interface import ModelError, TokenTree
from specdec_drafters.dflash import DFlashDrafter, read_dflash
from specdec_drafters.settings import DFlashConfig
from tests.catalogue import write_random_dflash
from tests.drafters.speculator_heads import CASES, DATA, PROMPTS, Bench, V, changed, target_for
from tests.drafters.support import commit, info_for

HEADS = DATA / "dflash"
WINDOW = {
    "use_sliding_window": True,
    "sliding_window": 2,
    "max_window_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}


def target_of(given):
    """A target whose embeddings are those that the package had."""
    target = target_for()
    with torch.no_grad():
        target.model.get_input_embeddings().weight.copy_(given["embed_tokens"])
        target.model.get_output_embeddings().weight.copy_(given["lm_head"])
    return target


@torch.inference_mode()
def alone(head, states, anchor):
    """The logits `[drafted, V]` after tokens with these states and the anchor, without a cache."""
    count = len(states)
    kept = head.context([states], torch.arange(count))
    context = [tuple(each.transpose(0, 1)[None] for each in layer) for layer in kept]
    return head(torch.tensor([anchor]), torch.tensor([count]), context)[0]


def check_logits(head, given, reference):
    """Compare a head with the logits of the speculators package, of the blocks that begin with each token."""
    states, tokens = given["hidden_states"][0], given["input_ids"][0].tolist()
    others = torch.ones(V, dtype=torch.bool).index_fill_(0, head.token_ids, value=False)
    first = head.shape.block_size - head.shape.drafted
    assert len(reference) == 8
    for anchor, expected in enumerate(reference):
        logits = alone(head, states[:anchor], tokens[anchor])
        torch.testing.assert_close(logits[:, head.token_ids], expected[first:], atol=1e-4, rtol=1e-4)
        assert (logits[:, others] == float("-inf")).all()


@pytest.mark.parametrize("case", CASES["dflash"])
def test_the_logits_are_those_of_the_speculators_package(case):
    given, reference = (load_file(HEADS / case / f"{name}.safetensors") for name in ("inputs", "reference"))
    head, layers = read_dflash(str(HEADS / case), target_of(given).info())
    assert layers == (0, 2, 3)
    check_logits(head, given, reference["logits"])


class BlockBench(Bench):
    """The same for a head that drafts a block at once."""

    def __init__(self, folder, **shape):
        shape = {"layers": (0, 2, 4), **shape}
        super().__init__(folder, write_random_dflash, DFlashDrafter, DFlashConfig, **shape)

    def q(self, tokens):
        """q of each position of a draft after the committed tokens, at temperature 1: `[drafted, V]`."""
        states = self.states(tokens[:-1])
        read = torch.cat([states[layer] for layer in self.drafter.hidden_layers], -1)
        return alone(self.drafter.head, read, tokens[-1]).softmax(-1)

    def check(self, session, tokens, budget=(3, 3, 3), seed=5):
        """Compare what a session drafts with what the head says by itself; return the proposal."""
        proposal = session.propose(self.request(tokens, budget, seed))
        assert proposal.lengths == tuple(min(each, self.drafter.head.shape.drafted) for each in budget)
        for row, length in enumerate(proposal.lengths):
            q = proposal.q.probabilities[row, :length]
            torch.testing.assert_close(q, self.q(tokens[row])[:length], atol=1e-5, rtol=1e-3)
        return proposal


@pytest.fixture(
    params=[{}, {"sample_from_anchor": True, "block_size": 4}, {"layer": WINDOW}],
    ids=["default", "anchor", "window"],
)
def bench(request, tmp_path):
    return BlockBench(tmp_path / "dflash", **request.param)


def test_q_is_the_heads_own_through_drafts_commits_and_ragged_rows(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    steps = [((3, 3, 3), (3, 0, 0)), ((2, 4, 0), (0, 4, 0)), ((4, 1, 9), (2, 1, 0)), ((1, 1, 1), (1, 1, 1))]
    for seed, (budget, kept) in enumerate(steps):
        proposal = bench.check(session, tokens, budget, seed)
        commit(session, tokens, proposal, kept, last=20 + seed)
    bench.check(session, tokens)


def test_all_nodes_of_a_depth_are_drawn_from_one_position(tmp_path):
    bench, shape = BlockBench(tmp_path / "dflash"), TokenTree((-1, -1, 1, 1, 2))
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    budget = (5, 2, 4)
    proposal = session.propose(bench.request(tokens, budget, shape=shape))
    assert proposal.lengths == budget
    positions = {0: 0, 2: 1, 4: 2}  # the first child of each node: its siblings are drawn without replacement
    for row, count in enumerate(budget):
        q = bench.q(tokens[row])
        for node, position in positions.items():
            if node < count:
                drawn = proposal.q.probabilities[row, node]
                torch.testing.assert_close(drawn, q[position], atol=1e-5, rtol=1e-3)


def test_no_blocks_beyond_the_positions_of_the_head(tmp_path):
    bench = BlockBench(tmp_path / "dflash", layer={"max_position_embeddings": 9})
    # The last token of a text of n is at position n - 1, the last mask of a block of 5 at n + 3.
    tokens = [list(range(2, 2 + length)) for length in (5, 6, 8, 9)]
    budget = bench.drafter.clipped(tokens, [8] * 4)
    assert budget == (4, 3, 1, 0)
    session = bench.drafter.open(info_for(4, V))
    assert session.propose(bench.request(tokens, budget)).lengths == budget


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": {"mask_token_id": V}}, "has the mask_token_id 40; the target's token ids are 0 to 39"),
        ({"config": {"aux_hidden_state_layer_ids": [0, 1, 5]}}, "a target with 4 layers has 0 to 4"),
        ({"config": {"block_size": 1}}, "has a block_size of 1, of which the first position holds the last token"),
        ({"drop": ["fc.weight"]}, "drafter 'dflash': .* lacks the weights fc.weight"),
        (
            {"layer": {"attention_bias": True}},
            "lacks the weights .*k_proj.bias, .*o_proj.bias, .*q_proj.bias, .*v_proj",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(tmp_path, changes, said):
    with pytest.raises(ModelError, match=said):
        read_dflash(changed(tmp_path / "head", "dflash/qwen3", **changes), target_for().info())


def test_the_embeddings_are_the_targets_own_memory():
    target = target_for()
    head, _ = read_dflash(str(HEADS / "anchor"), target.info())
    for own, theirs in (
        (head.embed_tokens.weight, target.features.input_embeddings),
        (head.lm_head.weight, target.features.output_embeddings),
    ):
        assert own.data_ptr() == theirs.data_ptr()
        assert not own.requires_grad
    assert all(weight.requires_grad for weight in target.model.parameters())
