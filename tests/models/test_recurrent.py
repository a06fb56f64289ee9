"""Targets with recurrent layers: states are restored after a rejection, and drafts change no text."""

import pytest
import torch

from specdec_core import Decoder
from specdec_core.interface import ModelError, TokenTree
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import ModelSession, compile_model, pack, with_exact_shapes, wrap_model
from specdec_core.models.load import probe
from specdec_core.models.load.probe import uncached_logits
from specdec_core.models.loaded import MOST_UNCACHED, Family, LoadedModel
from specdec_core.models.prefix_cache import PrefixCache
from specdec_core.models.run import recurrent
from specdec_core.models.run.recurrent import OwnCache, RecurrentCache, StateLayer
from specdec_core.testing import DrafterKit
from specdec_core.testing.harness import tiny_target
from specdec_drafters.heads.drafter import HeadsDrafter
from specdec_drafters.settings import HeadsConfig, TransformerConfig
from specdec_drafters.transformer import TransformerDrafter
from tests import lossless
from tests.conformance import failures, kit_of
from tests.drafters.support import write_random_heads
from tests.models.hybrids import (
    FAMILIES,
    LENGTH,
    OWN_CACHES,
    PROMPTS,
    REFUSED,
    VOCAB,
    Scripted,
    generated,
    hybrid,
    scripted,
    texts,
)
from tests.pairwise import some
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, TableDrafter


@pytest.mark.parametrize("family", some(FAMILIES, 2))
def test_greedy_texts_are_those_of_generate(family):
    model = hybrid(family)
    loaded, expected = wrap_model(model), [generated(model, prompt) for prompt in PROMPTS]
    assert len({token for text in expected for token in text}) > 2
    assert texts(loaded)[0] == expected
    drafted, metrics = texts(loaded, scripted(model), 4)
    assert drafted == expected
    assert metrics.target_calls <= 0.7 * LENGTH
    assert 0 < metrics.accepted < metrics.drafted


MANY = [*PROMPTS, [8, 3], [30, 21, 22, 9, 17], [4] * 12]


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(("right", "gamma"), some([(0.3, 4), (0.1, 7), (0.9, 7), (0.3, 1), (0.9, 1)], 1))
def test_a_draft_never_takes_more_passes_than_plain_decoding(right, gamma, rows):
    model, taken = hybrid("qwen3_5"), []
    loaded, drafter = wrap_model(model), scripted(model, right, MANY)
    expected = [generated(model, prompt) for prompt in MANY[:rows]]
    passes = count_passes(model)
    for drafts in ((None, None), (drafter, gamma)):
        passes.clear()
        assert texts(loaded, *drafts, MANY[:rows])[0] == expected
        taken.append(len(passes))
    assert taken[1] <= taken[0] + (rows > 1)  # rows end with drafts of different lengths


EXACT = [("rwkv", TableDrafter), ("jamba", CountingDrafter), ("zamba", TableDrafter), ("xlstm", TableDrafter)]
EXACT += [("qwen3_5", CountingDrafter), ("mamba2", TableDrafter)]


@pytest.mark.parametrize(("family", "drafter"), some(EXACT, 2))
def test_each_decision_is_that_of_the_exact_distributions(family, drafter):
    loaded, settings = (
        wrap_model(hybrid(family, lossless.VOCAB, sharpness=2.0)),
        lossless.SETTINGS["temperature-0.7"],
    )
    toy = drafter(lossless.VOCAB)
    exact = lossless.ExactDecisions(loaded, settings, getattr(toy, "table", None))
    decoder = Decoder(loaded, toy, gamma=Gamma(2, 4, 0, 6), sampling=settings, strict=True)
    prompts = [list(lossless.PROMPT), [4], [2, 2]]
    decoder.generate(prompts, max_new_tokens=30, ignore_eos=True, observers=[exact])
    assert exact.drafted > 40
    assert exact.error < 1e-5


PAIRS = [("qwen3_5", "qwen3_5"), ("nemotron_h", "lfm2"), ("llama", "qwen3_5"), ("mamba2", "llama")]


@pytest.mark.parametrize(
    ("target", "draft", "hierarchy"), some([(*pair, over) for pair in PAIRS for over in (False, True)], 3)
)
def test_a_hybrid_drafts_alone_and_in_the_middle(target, draft, hierarchy, tmp_path):
    def make(name):
        return tiny_model(name, VOCAB) if name == "llama" else hybrid(name)

    make(draft).save_pretrained(tmp_path)
    settings = {"name": "transformer", "model": str(tmp_path)}
    if hierarchy:
        settings |= {"name": "hierarchical", "drafter": "prompt-copy", "gamma": 2}
    model = make(target)
    drafted, metrics = texts(wrap_model(model), settings, 5)
    assert drafted == [generated(model, prompt) for prompt in PROMPTS]
    assert metrics.drafted > 60
    if target == draft:
        assert metrics.accepted > 0.9 * metrics.drafted


def test_a_kept_cache_goes_on_from_a_state_or_reads_again():
    model, cache = hybrid("qwen3_5"), PrefixCache()
    decoder = Decoder(wrap_model(model), "prompt-copy", gamma=3, temperature=0)
    reused = []
    prompt = PROMPTS[0]
    for keep, more in ((None, [4, 6]), (None, [8]), (4, [9]), (0, [1])):
        answer = list(decoder.generate(prompt, max_new_tokens=10, ignore_eos=True, cache=cache).tokens)
        assert answer == generated(model, prompt, count=10)
        reused.append(cache.reused[0])
        prompt = [*(prompt + answer)[: keep and len(prompt) + keep], *more]
    assert reused[:3] == [0, 16, 28]


def test_packed():
    model = hybrid("qwen3_next")
    assert texts(pack(wrap_model(model)), scripted(model), 4)[0] == [generated(model, one) for one in PROMPTS]


def test_snapshots_are_taken_in_place_and_do_not_grow():
    loaded = wrap_model(hybrid("qwen3_5"))
    session = ModelSession(loaded, 1, 400)
    session.forward([[3, 4, 5]])
    seen, tokens = set(), [3, 4, 5, 6]
    for step in range(60):
        session.forward([tokens[session.lengths[0] :]], torch.tensor([[7, 8, 9]]))
        seen |= {buffer.data_ptr() for kept in session._cache._snapshots for _, one in kept for buffer in one}
        tokens += [*(7, 8, 9)[: step % 4], 5]
        session.rollback([len(tokens) - 1])
    assert len(seen) == sum(len(layer.states(0)) for layer in session._cache._recurrent)


def count_passes(model):
    passes = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    return passes


@pytest.mark.parametrize("family", some([name for name in FAMILIES if name not in (*OWN_CACHES, "inkling2")], 2))
def test_rows_that_read_equally_many_tokens_share_a_pass(family):
    loaded = wrap_model(hybrid(family))
    session, rows = ModelSession(loaded, 4, 60), [[5, 9, 11], [3], [30, 21, 22], [8]]
    passes = count_passes(loaded.model)
    # Drafted and accepted tokens of each row. Rows 0 and 2, which are no neighbors, share a pass. Row 0
    # then begins again, with as many as row 1.
    steps = [((2, 2, 2, 0), (0, 2, 0, 0)), ((0, 3, 2, 0), (0, 1, 1, 0)), ((3, 1, 3, 0), (1, 1, 3, 0))]
    steps += [((2, 3, 1, 3), (0, 3, 0, 2)), ((0, 2, 0, 1), (0, 0, 0, 0)), ((1, 1, 1, 1), (1, 1, 1, 1))]
    for number, (drafted, accepted) in enumerate(steps):
        draft = torch.tensor([[12 + number, 14, 16 + row] for row in range(4)])
        uncached = [row[read:] for row, read in zip(rows, session.lengths, strict=True)]
        begun = [read > 0 for read in session.lengths]
        passes.clear()
        logits = session.forward(uncached, draft, drafted)
        widths = {(len(new) + n, later) for new, n, later in zip(uncached, drafted, begun, strict=True)}
        assert len(passes) == len(widths)
        for row, count in enumerate(drafted):
            for n in range(count + 1):
                wanted = uncached_logits(loaded, [*rows[row], *draft[row, :n].tolist()])
                torch.testing.assert_close(logits[row, n], wanted, atol=2e-3, rtol=2e-3)
            rows[row] += [*draft[row, : accepted[row]].tolist(), 2]
        session.rollback([len(row) - 1 for row in rows])


def test_rows_in_step_take_the_passes_of_one_row(tmp_path):
    model = hybrid("qwen3_5")
    model.save_pretrained(tmp_path)
    loaded = wrap_model(model)
    drafter = TransformerDrafter(TransformerConfig(model=str(tmp_path)), loaded.info())
    passes = count_passes(model), count_passes(drafter.loaded.model)
    prompts, taken = [[5, 9, 11], [30, 21, 22], [8, 3, 3]], []
    for rows in (prompts, prompts[:1]):
        texts(loaded, drafter, 3, rows)
        taken.append([len(own) for own in passes])
        for own in passes:
            own.clear()
    (target, draft), alone = taken
    assert alone == [LENGTH // 4, LENGTH // 4 * 3]
    assert target == alone[0] + 1  # the first of which drafts nothing
    assert draft <= alone[1]


def test_many_uncached_tokens_are_read_without_a_draft():
    model = hybrid("qwen3_5")
    loaded = wrap_model(model)
    decoder = Decoder(loaded, Scripted([[3, *generated(model, [3])]], 0.0), gamma=3, temperature=0)
    steps = [report.outcome.drafted[0] for report in decoder.stream([[3]], max_new_tokens=LENGTH, ignore_eos=True)]
    assert steps[: MOST_UNCACHED + 1] == [3] * MOST_UNCACHED + [0]
    prompt = list(range(2, 2 + MOST_UNCACHED + 1))
    (first, *_) = Decoder(loaded, "random", gamma=3).stream([prompt], max_new_tokens=3)
    assert first.asked == (0,)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_whose_states_cannot_be_reached_is_refused(family):
    with pytest.raises(ModelError, match="what it keeps of earlier tokens is in its modules"):
        wrap_model(hybrid(family))


OWN_DEFECTS = {
    "a state of little effect is ignored before several tokens": (
        "zamba",
        probe,
        "_with_single_tokens",
        lambda loaded: loaded,
    ),
    "a cache is not restored": ("deepseek_v32", OwnCache, "_restore", lambda *_: None),
    "a snapshot is the cache": ("rwkv", recurrent, "_copied", lambda cache: cache),
    "masks of a cache without length": ("minimax", Family, "masks_own_cache", False),
}


@pytest.mark.parametrize("defect", OWN_DEFECTS)
def test_planted_defects_of_other_caches_are_noticed(defect, monkeypatch):
    family, *change = OWN_DEFECTS[defect]
    model = hybrid(family)
    wrap_model(model)
    monkeypatch.setattr(*change)
    with pytest.raises(ModelError, match="after its cache is rolled back"):
        wrap_model(model)


def kept_as_it_is(cache, row, length, wanted):
    return min(length, wanted)


def restored_always(cache, row, length, wanted):
    kept = cache._snapshots[row]
    if not kept:
        return length
    return RESTORE(cache, row, 10**6, max(wanted, kept[-1][0]))


def without_convolutions(layer, row):
    return [states[row] for (kind, _), states in layer._whole.items() if kind == "recurrent_states"]


def of_the_first(layer, row):
    return [states[0] for states in layer._whole.values()]


def late(session, cache, block):
    output, head = session._run_in_groups(block), block.tokens.shape[1] - block.draft
    for row, (count, padding) in enumerate(zip(block.counts, block.padding, strict=True)):
        if count > head - padding:
            cache.take(row, session.lengths[row])
    return output


RESTORE = RecurrentCache.settle
DEFECTS = {
    "not restored": (RecurrentCache, "settle", kept_as_it_is),
    "restored twice": (RecurrentCache, "settle", restored_always),
    "no convolution states": (StateLayer, "states", without_convolutions),
    "taken late": (ModelSession, "_run_with_states", late),
    "shared by rows": (StateLayer, "states", of_the_first),
}


@pytest.mark.parametrize("defect", some(DEFECTS, 1))
def test_planted_defects_are_noticed(defect, monkeypatch):
    model = hybrid("qwen3_5")
    loaded, drafter = wrap_model(model), scripted(model)

    def found():
        try:
            return [texts(loaded, drafter, 4, rows)[0] for rows in (PROMPTS, PROMPTS[:1])]
        except AssertionError:  # a state went back further than its tokens
            return []

    expected = [generated(model, prompt) for prompt in PROMPTS]
    assert found() == [expected, expected[:1]]
    monkeypatch.setattr(*DEFECTS[defect])
    assert found() != [expected, expected[:1]]
    monkeypatch.setattr(LoadedModel, "with_own_cache", lambda loaded: loaded)  # which has no such layers
    with pytest.raises(ModelError, match="after its cache is rolled back"):
        wrap_model(model)


def test_passes_are_neither_compiled_nor_of_one_shape():
    loaded = wrap_model(hybrid("lfm2"))
    with pytest.warns(RuntimeWarning, match="not compiled .*states of its recurrent layers") as warned:
        assert compile_model(loaded) is loaded
    assert len(warned) == 1
    with pytest.raises(ModelError, match="exact_shapes: Lfm2ForCausalLM has recurrent layers"):
        with_exact_shapes(loaded)


def test_one_path_is_read_by_a_state():
    loaded = wrap_model(hybrid("qwen3_5"))
    gamma = Gamma(6, tree=TokenTree.from_widths((2, 1)))
    decoder = Decoder(loaded, TableDrafter(VOCAB), gamma=gamma, temperature=0)
    with pytest.warns(PluginWarning, match="a tree was asked for"):
        result = decoder.generate(PROMPTS[0], max_new_tokens=LENGTH, ignore_eos=True)
    assert list(result.tokens) == generated(loaded.model, PROMPTS[0])
    assert result.metrics.tree_steps == 0 < result.metrics.drafted


@pytest.fixture
def kit_target(monkeypatch):
    loaded = wrap_model(hybrid("qwen3_5", lossless.VOCAB, sharpness=2.0))
    monkeypatch.setattr(tiny_target, "_TINY_TARGETS", {})
    monkeypatch.setattr(tiny_target, "tiny_loaded_model", lambda *_, **__: loaded)
    return loaded


@pytest.mark.slow
def test_the_kit_over_recurrent_target_and_draft_model(kit_target, tmp_path):
    hybrid("nemotron_h", lossless.VOCAB, sharpness=2.0).save_pretrained(tmp_path)
    kit = kit_of(DrafterKit, lambda info: TransformerDrafter(TransformerConfig(model=str(tmp_path)), info))
    checks = "rollback", "rows_independent", "many_steps", "waiting_rows", "sessions_independent"
    assert failures(kit, *checks, "draft_sampled_from_q", "greedy_equals_baseline") == {}


@pytest.mark.slow
def test_the_kit_over_a_recurrent_target_whose_hidden_states_are_read(kit_target, tmp_path):
    write_random_heads(tmp_path / "heads.safetensors", kit_target)
    config = HeadsConfig(model=str(tmp_path / "heads.safetensors"))
    kit = kit_of(DrafterKit, lambda info: HeadsDrafter(config, info))
    assert failures(kit, "greedy_equals_baseline", "lossless_trees", "replay_equals_live") == {}
