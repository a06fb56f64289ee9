"""The parallel drafter: q of all depths from one forward pass over mask tokens that leave no trace."""

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ModelError, TargetInfo
from specdec_core.models import load_model, wrap_model
from specdec_drafters.parallel import ParallelDrafter
from specdec_drafters.settings import ParallelConfig
from tests.drafters.support import (
    assert_as_fresh,
    assert_tree_paths_leave_what_a_fresh_session_has,
    commit,
    info_for,
    request_for,
    rows_of,
)
from tests.tiny import tiny_model
from tests.toys import Gamma

V, MASK = 40, 40
PROMPTS = ([3, 4, 5, 6], [7, 8], [9, 10, 11])
SOURCES = ((2, 3, 4), (5, 6), (7, 8, 9, 10))


@pytest.fixture(scope="module")
def drafters(tmp_path_factory):
    """Return a function from a family to a drafter whose model has a mask token behind its vocabulary."""
    root = tmp_path_factory.mktemp("models")

    def drafters(family, **settings):
        model = tiny_model(family, V + 1, sharpness=1.5)
        model.config.pard_token = MASK
        model.save_pretrained(root / family)
        target = TargetInfo(vocab_size=V, device="cpu", encoder_decoder=family == "t5")
        return ParallelDrafter(ParallelConfig(model=str(root / family), **settings), target)

    return drafters


def reference_q(drafter, tokens, depth, source):
    """Return q of the first tokens of a draft, `[depth, V]`: plain transformers, without a cache."""
    ids = torch.tensor([[*tokens, *[MASK] * (depth - 1)]])
    if source is None:
        logits = drafter.loaded.model(input_ids=ids, use_cache=False).logits
    else:
        model = drafter.loaded.model
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=ids, use_cache=False).logits
    return logits[0, -depth:, :V].softmax(-1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "t5"])
def test_q_of_each_depth_is_the_models_at_its_mask(drafters, family):
    drafter = drafters(family)
    sources = SOURCES if family == "t5" else None
    info = info_for(3, V, sources)
    session, tokens = drafter.open(info), [list(prompt) for prompt in PROMPTS]
    steps = (((4, 3, 4), (2, 0, 4)), ((0, 4, 2), (0, 1, 2)), ((1, 1, 1), (1, 0, 0)), ((3, 0, 4), (3, 0, 0)))
    for seed, (budget, kept) in enumerate(steps):
        proposal = session.propose(request_for(tokens, budget, seed=10 * seed))
        assert proposal.lengths == budget
        for row, most in enumerate(budget):
            if most:
                expected = reference_q(drafter, tokens[row], most, sources and sources[row])
                q = proposal.q.probabilities[row, :most]
                torch.testing.assert_close(q, expected, atol=1e-5, rtol=1e-3)
        commit(session, tokens, proposal, kept, last=20 + seed)
    assert_as_fresh(drafter, info, session, tokens)


def test_all_nodes_at_a_depth_come_from_one_mask_and_none_stays(drafters):
    drafter = drafters("llama")
    info = info_for(3, V)
    assert_tree_paths_leave_what_a_fresh_session_has(drafter, info, PROMPTS, V)


def test_a_draft_takes_one_forward_pass(drafters):
    target = wrap_model(tiny_model("llama", V, sharpness=1.5))
    drafter = drafters("llama")
    passes = []
    drafter.loaded.model.register_forward_hook(lambda *_: passes.append(1))
    metrics = Decoder(target, drafter, gamma=Gamma(6)).generate([3, 4, 5], max_new_tokens=30, seed=0).metrics
    assert metrics.drafted == 6 * metrics.target_calls
    assert len(passes) == metrics.target_calls


def test_count_and_the_depth_of_the_training_limit_a_draft(drafters):
    assert drafters("llama").count is None
    drafter = drafters("llama", count=2)
    proposal = drafter.open(info_for(3, V)).propose(request_for([list(row) for row in PROMPTS], (4, 1, 0)))
    assert list(map(len, rows_of(proposal))) == [2, 1, 0]
    drafter.loaded.model.config.pard_depth = 5
    drafter.loaded.model.save_pretrained(drafter.loaded.name)
    target = TargetInfo(vocab_size=V, device="cpu")
    assert ParallelDrafter(ParallelConfig(model=drafter.loaded.name), target).count == 5


@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id"])
def test_the_mask_token_is_found_under_the_keys_that_vllm_reads(tmp_path, key):
    model = tiny_model("llama", V)
    setattr(model.config, key, 7)
    model.save_pretrained(tmp_path)
    target = TargetInfo(vocab_size=V, device="cpu")
    assert ParallelDrafter(ParallelConfig(model=str(tmp_path)), target).mask_token == 7


def test_a_model_without_a_usable_mask_token_is_refused_with_what_to_do(tmp_path):
    target = TargetInfo(vocab_size=V, device="cpu")
    model = tiny_model("llama", V)
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"names no mask token .*drafter 'transformer'"):
        ParallelDrafter(ParallelConfig(model=str(tmp_path)), target)
    model.config.pard_token = V
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=rf"the mask token of .* is {V}, but the model has the tokens 0 to {V - 1}"
    ):
        ParallelDrafter(ParallelConfig(model=str(tmp_path)), load_model(tmp_path).info())
