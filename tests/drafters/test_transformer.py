"""The transformer drafter against its model run afresh on the same tokens."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specdec_core.interface import ModelError, TargetInfo
from specdec_drafters.settings import TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests.drafters.support import (
    PROMPTS,
    SOURCES,
    assert_as_fresh,
    assert_q_through_drafts_commits_and_ragged_rows,
    assert_tree_paths_leave_what_a_fresh_session_has,
    info_for,
    names_of,
    request_for,
)
from tests.tiny import tiny_model

V = 40


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Save each tiny model once; return the folder of a family."""
    root = tmp_path_factory.mktemp("models")

    def folder(family="llama", vocab=V, tokenizer=None):
        path = root / f"{family}-{vocab}-{0 if tokenizer is None else len(tokenizer)}"
        if not path.exists():
            tiny_model(family, vocab).save_pretrained(path)
            if tokenizer is not None:
                tokenizer.save_pretrained(path)
        return path

    return folder


def drafter_for(path, **target):
    target = {"vocab_size": V, "device": "cpu", **target}
    return TransformerDrafter(TransformerConfig(model=str(path)), TargetInfo(**target))


def tokenizer_of(words):
    inner = Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token=words[0]))
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=words[0])


def model_q(drafter, tokens, source=None):
    """Return q after `tokens` by the model alone, without a cache: `[V]`."""
    with torch.inference_mode():
        return drafter.loaded.model(**names_of(tokens, source), use_cache=False).logits[0, -1].softmax(-1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "t5"])
def test_q_is_the_models_own_through_drafts_commits_and_ragged_rows(folder, family):
    drafter = drafter_for(folder(family), encoder_decoder=family == "t5")
    session = assert_q_through_drafts_commits_and_ragged_rows(
        drafter, partial(model_q, drafter), V, SOURCES if family == "t5" else None
    )
    assert_as_fresh(drafter, *session)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_nodes_of_the_accepted_path_stay_in_the_cache(folder, family):
    drafter = drafter_for(folder(family), encoder_decoder=family == "t5")
    info = info_for(3, V, SOURCES if family == "t5" else None)
    assert_tree_paths_leave_what_a_fresh_session_has(drafter, info, PROMPTS, V)


def test_the_draft_model_is_loaded_with_its_settings(folder, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "inner")
    settings = {"subfolder": "inner", "attn_implementation": "eager", "dtype": "bfloat16"}
    config = TransformerConfig(model=tmp_path.name, **settings)
    target = TargetInfo(vocab_size=V, device="cpu", folder=tmp_path.parent)
    loaded = TransformerDrafter(config, target).loaded
    assert loaded.family.float_mask
    assert loaded.model.dtype == torch.bfloat16
    with pytest.raises(ModelError, match="quantization_config"):
        TransformerDrafter(config.model_copy(update={"quantization_config": {"quant_method": "gptq"}}), target)


def test_the_last_drafted_token_is_not_run_through_the_model(folder):
    session = drafter_for(folder()).open(info_for(2, V))
    session.propose(request_for([[2, 3], [4]], [3, 2]))
    assert session._model.calls == 3
    assert session._model.lengths == [2 + 2, 1 + 1]
    session.propose(request_for([[2, 3], [4]], [0, 0]))
    assert session._model.calls == 3


def test_a_row_beyond_the_drafters_positions_drafts_nothing(folder):
    drafter = drafter_for(folder())
    limit = drafter.loaded.max_positions
    info = replace(info_for(3, V), capacity=2 * limit)
    tokens = [[3] * (limit - 1), [3] * (limit + 1), [2, 3]]
    session = drafter.open(info)
    budget = drafter.clipped(tokens, [4, 4, 4])
    assert budget == (2, 0, 4)
    assert session.propose(request_for(tokens, budget)).lengths == budget
    assert drafter.clipped([[3] * limit], [4]) == (1,)


WORDS = [f"w{number}" for number in range(V)]


@pytest.mark.parametrize("target_size", [V - 4, V + 8])
def test_vocabularies_that_are_padded_or_have_added_tokens_are_cut_or_filled(folder, target_size):
    path, tokenizer = folder(tokenizer=tokenizer_of(WORDS[: V - 4])), tokenizer_of(WORDS[: V - 4])
    if target_size > V:
        tokenizer.add_tokens([f"<{number}>" for number in range(4 + 8)])
    warned = pytest.warns(RuntimeWarning, match="12 differ. The first: id 36: target '<0>', drafter nothing")
    with warned if target_size > V else nullcontext():
        drafter = drafter_for(path, vocab_size=target_size, tokenizer=tokenizer)
    # The target may commit an id that the drafter has no embedding for.
    tokens = [[2, target_size - 1], [3]]
    proposal = drafter.open(info_for(2, target_size)).propose(request_for(tokens, [2, 2]))
    q = proposal.q.probabilities
    assert q.shape[2] == target_size
    assert (q[..., V:] == 0).all()
    expected = model_q(drafter, [3])[:target_size]
    torch.testing.assert_close(q[1, 0, :V], expected / expected.sum(), atol=1e-5, rtol=1e-3)


def test_vocabularies_that_differ_are_refused_with_sizes_and_entries(folder):
    own = tokenizer_of(WORDS)
    path = folder("gpt2", tokenizer=own)
    other = tokenizer_of([*WORDS[:7], "other", *WORDS[8:30]])
    with pytest.raises(ModelError) as raised:
        drafter_for(path, tokenizer=other)
    message = str(raised.value)
    assert "has 40 entries, the target's 30, and 1 differ. The first: id 7: target 'other'" in message
    assert "choose a draft model of the target's family" in message


@pytest.mark.parametrize(
    ("family", "target", "said"),
    [
        ("llama", {"vocab_size": 41}, "has 40 entries, the target's 41, and without both tokenizers"),
        ("t5", {}, "has an encoder, which needs a source"),
        ("llama", {"encoder_decoder": True}, "'transformer': .* has no encoder, so it cannot read the source"),
    ],
)
def test_models_that_do_not_fit_the_target_are_refused(folder, family, target, said):
    with pytest.raises(ModelError, match=said):
        drafter_for(folder(family), **target)
