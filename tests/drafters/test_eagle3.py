"""The eagle3 drafter: the head of the speculators package, and what it reads as a text grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from specdec_core.interface import Outcome, TokenTree
from specdec_core.models import wrap_model
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.config import Eagle3Config
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.eagle3.model import CARRIED
from tests.catalogue import write_random_eagle3
from tests.drafters.support import SeededRequest, commit, info_for, rows_of, tree_request
from tests.tiny import tiny_model

DATA = Path(__file__).parent / "data" / "eagle3"
CASES = ("llama", "qwen3", "norm-before-fc")
V, D = 40, 16
PROMPTS = [[2, 3, 4, 5, 6, 7], [8, 7], [9, 10, 11]]


def target_for(family="llama", device="cpu", seed=0, **settings):
    """A target whose hidden states the heads in `DATA` read."""
    model = tiny_model(family, V, seed, **{"hidden_size": D, "num_hidden_layers": 4, **settings})
    return wrap_model(model.to(device))


@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_the_speculators_package(case):
    head, layers = read_eagle3(str(DATA / case), target_for().info())
    given = load_file(DATA / case / "inputs.safetensors")
    reference = load_file(DATA / case / "reference.safetensors")["logits"]
    assert layers == (0, 1, 2)
    tokens, states = given["input_ids"], head.combine(given["hidden_states"])
    steps, count = reference.shape[:2]
    with torch.inference_mode():
        for base in range(count):
            cache = DynamicCache(config=head.config)
            output = head(tokens[:, : base + 1], states[:, : base + 1], cache)
            for step in range(min(steps, count - base)):
                if step:
                    state = output.hidden_states[CARRIED][:, -1:]
                    output = head(tokens[:, base + step, None], state, cache)
                logits = output.logits[0, -1]
                torch.testing.assert_close(logits[head.token_ids], reference[step, base], atol=1e-4, rtol=1e-4)
                others = torch.ones(V, dtype=torch.bool).index_fill_(0, head.token_ids, value=False)
                assert (logits[others] == float("-inf")).all()


class Bench:
    """A drafter and its target: requests with the target's states, and what the head says of a text by itself."""

    def __init__(self, folder, family="llama", layers=(0, 2, 4), seed=0, **flags):
        self.target = target_for(family, seed=seed)
        write_random_eagle3(folder, self.target, layers, **flags)
        self.drafter = Eagle3Drafter(Eagle3Config(model=str(folder)), self.target.info())
        self.info = info_for(len(PROMPTS), V)

    def states(self, tokens):
        """The outputs of the layers at each token, `[T, D]`, without a cache."""
        with torch.inference_mode(), self.target.features.capture_layers(self.drafter.hidden_layers) as states:
            self.target.model(torch.tensor([list(tokens)]), use_cache=False)
        return {layer: state[0] for layer, state in states.items()}

    def carried(self, rows):
        """The states of a request, NaN where a drafter must not read."""
        read = [self.states(row[:-1]) for row in rows]
        return {
            layer: pad_sequence([states[layer] for states in read], batch_first=True, padding_value=torch.nan)
            for layer in self.drafter.hidden_layers
        }

    def request(self, rows, budget, seed=0, shape=None):
        states = self.carried(rows)
        if shape is None:
            return SeededRequest(rows, budget, seed, hidden_states=states)
        return tree_request(rows, budget, shape, V, hidden_states=states)

    def q(self, tokens, draft):
        """q after the committed tokens and a draft, at temperature 1 and without a cache: `[V]`."""
        head, states = self.drafter.head, self.states(tokens[:-1])
        text = [*tokens[1:], *draft]
        with torch.inference_mode():
            read = head.combine(torch.cat([states[layer] for layer in self.drafter.hidden_layers], -1))[None]
            for end in range(len(tokens) - 1, len(text) + 1):
                output = head(torch.tensor([text[:end]]), read)
                read = torch.cat([read, output.hidden_states[CARRIED][:, -1:]], 1)
        return output.logits[0, -1].softmax(-1)

    def check(self, session, tokens):
        """Compare what a session drafts with what the head says by itself."""
        proposal = session.propose(self.request(tokens, [3] * len(tokens), seed=5))
        for row, draft in enumerate(rows_of(proposal)):
            for place in range(len(draft)):
                expected = self.q(tokens[row], draft[:place])
                torch.testing.assert_close(proposal.q.probabilities[row, place], expected, atol=1e-5, rtol=1e-3)


@pytest.fixture(params=[{}, {"norm_output": True, "fc_norm": True}], ids=["default", "norms"])
def bench(request, tmp_path):
    return Bench(tmp_path / "eagle3", **request.param)


def test_q_is_the_heads_own_through_drafts_commits_and_ragged_rows(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    steps = [((3, 3, 3), (3, 0, 0)), ((2, 4, 0), (0, 4, 0)), ((4, 1, 3), (2, 1, 0)), ((1, 1, 1), (1, 1, 1))]
    for seed, (budget, kept) in enumerate(steps):
        proposal = session.propose(bench.request(tokens, budget, seed=10 * seed))
        assert proposal.lengths == budget
        for row, draft in enumerate(rows_of(proposal)):
            for place in range(len(draft)):
                expected = bench.q(tokens[row], draft[:place])
                torch.testing.assert_close(proposal.q.probabilities[row, place], expected, atol=1e-5, rtol=1e-3)
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
    paths = ((1, 2, 4), (0,), ())
    new = tuple(
        (*(row[node] for node in path), 20) for row, path in zip(proposal.tokens.tolist(), paths, strict=True)
    )
    for row, more in zip(tokens, new, strict=True):
        row += more
    parents = tuple(shape.parents[:count] for count in budget)
    accepted = tuple(map(len, paths))
    session.commit(Outcome(budget, accepted, new, (False,) * 3, parents=parents, paths=paths))
    bench.check(session, tokens)


def test_commits_that_are_undone_and_rows_that_take_over_another_text(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    session.propose(bench.request(tokens, [3] * 3))
    for row, (length, new) in zip(tokens, ((3, [30, 31]), (2, []), (3, [7])), strict=True):
        del row[length:]
        row += new
    session.rollback([3, 2, 3])
    bench.check(session, tokens)


def test_steps_without_the_drafter_are_caught_up(bench):
    session, tokens = bench.drafter.open(bench.info), [list(prompt) for prompt in PROMPTS]
    session.propose(bench.request(tokens, [2] * 3))
    for number in range(4):
        for row in tokens:
            row.append(30 + number)
        session.commit(Outcome((0,) * 3, (0,) * 3, ((30 + number,),) * 3, (False,) * 3, used=False))
    bench.check(session, tokens)


def test_nothing_is_drafted_before_the_target_has_read(bench):
    proposal = bench.drafter.open(bench.info).propose(SeededRequest(PROMPTS, [3] * 3))
    assert proposal.lengths == (0, 0, 0)


def test_no_drafts_beyond_the_positions_of_the_head(tmp_path):
    bench = Bench(tmp_path / "eagle3")
    path = tmp_path / "eagle3" / "config.json"
    config = json.loads(path.read_text())
    config["transformer_layer_config"]["max_position_embeddings"] = 6
    path.write_text(json.dumps(config))
    drafter = Eagle3Drafter(Eagle3Config(model=str(path.parent)), bench.target.info())
    tokens = [list(range(2, 2 + length)) for length in (4, 5, 9)]
    proposal = drafter.open(info_for(3, V)).propose(bench.request(tokens, [8] * 3))
    assert proposal.lengths == (4, 3, 0)
