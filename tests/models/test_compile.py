"""Compiled forward passes: when they are used, that they equal eager ones, and what happens if they do not."""

import warnings
from copy import copy
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import LAST_HIDDEN
from specdec_core.interface.controllers import ScriptedGamma
from specdec_core.interface.errors import ModelError
from specdec_core.interface.settings import TargetConfig
from specdec_core.models import ModelSession, first_layers, load_model, pack, quantize, wrap_model
from specdec_core.models.fast import compiling, cuda_graphs
from specdec_core.models.fast.compiling import compile_as_set, compile_model, prove
from specdec_core.models.fast.cuda_graphs import IDLE, GraphPasses
from specdec_core.models.fast.inductor import InductorPasses
from specdec_core.models.fast.products import supports
from specdec_core.models.fast.static import CheckedPass, StaticError, block_layout
from tests.compiled import TOLERANCE, compiled, fixed, traced
from tests.device.cases import PROMPTS, model_drafter, target_on, tokens_of
from tests.lossless import SETTINGS
from tests.pairwise import some
from tests.tiny import DECODER_ONLY, FAMILIES, tiny_model

PROMPT = [3, 4, 5, 6]


def counted(loaded, kind):
    """Return a compiled model, and a list of the passes that were replayed."""
    model = compiled(loaded, kind)
    run, seen = model.passes.run, []

    def counting(*arguments):
        output = run(*arguments)
        seen.append(output is not None)
        return output

    model.passes.run = counting
    return model, seen


def test_tokens_take_the_next_positions_and_padding_the_slot_that_is_never_read():
    # Rows with 5, 0 and 7 cached tokens, of which 2, 3 and none new ones, with padding before and after them.
    layout = torch.tensor([[5, 0, 7], [1, 0, 4], [2, 3, 0]])
    positions, slots, real = block_layout(layout, 4, trash=99)
    assert real.tolist() == [[False, True, True, False], [True, True, True, False], [False] * 4]
    assert slots.tolist() == [[99, 5, 6, 99], [0, 1, 2, 99], [99] * 4]
    assert positions.tolist() == [[0, 5, 6, 0], [0, 1, 2, 0], [0] * 4]


@pytest.mark.parametrize(
    ("kind", "family", "rows"),
    [
        *(
            pytest.param("fixed", family, 2, marks=() if family == "gemma3" else pytest.mark.slow)
            for family in DECODER_ONLY
        ),
        *(pytest.param("symbolic", family, 2, marks=pytest.mark.slow) for family in FAMILIES),
        pytest.param("symbolic", "t5", 1, marks=pytest.mark.slow),
        *(pytest.param(kind, "llama", 1, marks=pytest.mark.slow) for kind in ("fixed", "symbolic")),
    ],
)
def test_static_passes_equal_eager_ones(kind, family, rows):
    model, seen = counted(wrap_model(tiny_model(family)), kind)
    prove(model, rows)
    assert seen
    assert all(seen)


def test_gates_are_applied_by_the_product_that_makes_them():
    loaded = pack(wrap_model(tiny_model("llama", intermediate_size=48, head_dim=16)))
    if not supports(torch.float32):
        pytest.skip("no product of our own on this CPU")
    graphs = []
    passes = InductorPasses(loaded, TOLERANCE, lambda graph, *_, **__: graphs.append(graph) or graph)
    prove(passes.model)
    assert passes.failed is None
    called = [str(node.target) for node in graphs[0].graph.nodes]
    assert called.count("specdec.gated_product.default") == called.count("specdec.attention.default") == 2
    assert "aten.silu.default" not in called
    logits = []
    for one in (loaded, passes.model):  # longer than what `prove` reads
        session = ModelSession(one, 1, 60)
        session.forward([PROMPT * 12])
        logits.append(session.forward([[7]]))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", some(["fixed", "symbolic"], 1))
def test_texts_that_grow_and_drafts_of_any_width(kind, monkeypatch):
    """Graphs are captured for some widths and lengths, and all others run padded."""
    monkeypatch.setattr(cuda_graphs, "SHORTEST", 8)
    loaded = wrap_model(tiny_model("llama"))
    model, seen = counted(loaded, kind)
    logits = []
    for one in (loaded, model):
        session = ModelSession(one, 2, 45)
        session.forward([PROMPT, PROMPT[:2]])
        for step in range(8):
            widths = (step, 7 - step)
            draft = (torch.arange(max(widths))[None] + torch.tensor([[step], [3 * step]])) % 40
            output = session.forward([[7], [8]], draft, widths)
            logits += [output[row, : width + 1] for row, width in enumerate(widths)]
            session.rollback([length - width // 2 for length, width in zip(session.lengths, widths, strict=True)])
    torch.testing.assert_close(logits[: len(logits) // 2], logits[len(logits) // 2 :], atol=1e-4, rtol=1e-4)
    assert len(seen) == 8
    assert all(seen)


@pytest.mark.parametrize("kind", [pytest.param("symbolic", marks=pytest.mark.slow), "fixed"])
def test_float_masks_and_hidden_states(kind):
    model = tiny_model("llama")
    model.set_attn_implementation("eager")
    loaded = wrap_model(model)
    states = []
    for one in (loaded, compiled(loaded, kind)):
        other = ModelSession(one, 2, 30)  # which leaves a cache without hidden states
        other.forward([PROMPT, PROMPT])
        other.close()
        session = ModelSession(one, 2, 30, hidden_layers=(1, LAST_HIDDEN))
        session.forward([PROMPT, PROMPT[:2]])
        for _ in range(4):
            session.forward([[7], [8]], torch.tensor([[9, 10], [11, 12]]), (2, 1))
            session.rollback([session.lengths[0] - 2, session.lengths[1]])
        kept = session.hidden_states[1]
        states.append([session.hidden[0], session.hidden[1, :2], kept[0, :8], kept[1, :10]])
    torch.testing.assert_close(*states, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", some(["fixed", "symbolic"], 1))
def test_caches_that_go_on_with_other_rows_and_more_tokens(kind, monkeypatch):
    """What was captured on buffers that are gone is not replayed on the new ones."""
    monkeypatch.setattr(cuda_graphs, "SHORTEST", 8)
    loaded = wrap_model(tiny_model("llama"))
    logits = []
    for one in (loaded, compiled(loaded, kind)):
        session = ModelSession(one, 2, 8)
        session.forward([PROMPT, PROMPT[:2]])
        for rows, lengths, capacity in (((1, 0), (1, 4), 7), ((0, 1), (1, 3), 20), ((1, 1, 0), (3, 2, 1), 50)):
            logits.append(session.forward([[7]] * len(session.lengths)))
            session.resume(rows, lengths, capacity)
            logits += [session.forward([[9]] * len(rows)) for _ in range(3)]
    torch.testing.assert_close(logits[: len(logits) // 2], logits[len(logits) // 2 :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sampling", some(["temperature-0.7-top-p-0.6", "greedy"], 1))
def test_a_line_in_one_call_is_that_of_single_passes(sampling, monkeypatch):
    """Tokens follow from p, q, the random numbers and what is cached. Greedy drafts are all accepted."""
    lines = []
    draft = ModelSession.draft
    monkeypatch.setattr(ModelSession, "draft", lambda *given: lines.append(draft(*given)) or lines[-1])
    eager, static = copy(model_drafter("cpu")), copy(model_drafter("cpu"))
    if sampling == "greedy":
        eager.loaded = target_on("cpu")
    static.loaded = compiled(eager.loaded, "symbolic")
    results = []
    for drafter, in_line in ((eager, False), (eager, True), (static, True)):
        monkeypatch.setattr(ModelSession, "drafts", in_line)
        results.append([])
        for prompts, gamma in (
            (PROMPTS[:1], 4),
            (PROMPTS, 4),
            ([PROMPTS[0], [4, 3, 2, 5, 3]], ScriptedGamma(4, lambda: (1, 4))),
        ):
            decoder = Decoder(target_on("cpu"), drafter, gamma=gamma, sampling=SETTINGS[sampling], strict=True)
            results[-1].append(decoder.generate(prompts, max_new_tokens=30, seed=3))
        assert (len(lines) > 5) == in_line
    for single, *others in zip(*results, strict=True):
        for whole in others:
            assert tokens_of(whole) == tokens_of(single)
            assert whole.metrics.accepted == single.metrics.accepted > 0


def test_trees_and_prompts_run_eagerly_beside_static_passes():
    loaded = wrap_model(tiny_model("llama"))
    logits = []
    for one in (loaded, compiled(loaded, "fixed")):
        session = ModelSession(one, 1, 80)
        session.forward([list(range(3, 38))])
        session.forward([[5]], torch.tensor([[6, 7, 8]]), None, torch.tensor([[-1, -1, 1]]))
        session.keep([[1, 2]])
        logits.append([session.forward([[9]], torch.tensor([[10, 11]])) for _ in range(4)])
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kept", ["layout", "tokens"])
def test_what_is_burnt_in_is_noticed(kept):
    """A capture that reads a copy of its input of the first time gives right logits once."""

    def stale(function, arguments, cache):
        number = ("tokens", "layout").index(kept)
        first = arguments[number].clone()
        return lambda *given: function(*(first if n == number else each for n, each in enumerate(given)))

    loaded = wrap_model(tiny_model("llama"))
    model = replace(loaded, passes=GraphPasses(loaded, TOLERANCE, stale))
    with pytest.warns(RuntimeWarning, match=r"not compiled \(relative error .*tolerance.*compile: false"):
        prove(model)
    assert model.passes.failed


def test_a_replay_is_compared_twice():
    def replay(values):
        values += 1  # wrong from the second time on
        return (values.clamp(min=0),)

    checked, values = CheckedPass(lambda _: (torch.zeros(2),), replay, TOLERANCE), torch.full((2,), -1.0)
    checked(values)
    with pytest.raises(StaticError, match="relative error"):
        checked(values)


def test_checks_that_threads_end_together_are_over():
    calls = []

    def function():
        calls.append(None)
        return checked() if len(calls) == 2 else ()  # as another thread may, before the last check is over

    checked = CheckedPass(function, tuple, TOLERANCE)
    for _ in range(4):
        checked()
    assert len(calls) == 3


@pytest.mark.slow
def test_a_capture_reads_nothing_but_weights_and_arguments():
    loaded = wrap_model(tiny_model("llama"))
    graphs = []

    def capture(function, arguments, cache):
        graphs.append(traced(function, arguments, cache))
        return graphs[-1]

    prove(replace(loaded, passes=GraphPasses(loaded, TOLERANCE, capture)), 2)
    own = {tensor.data_ptr() for tensor in (*loaded.model.parameters(), *loaded.model.buffers())}
    assert graphs
    for graph in graphs:
        assert {tensor.data_ptr() for tensor in (*graph.parameters(), *graph.buffers())} <= own


def test_a_compiler_that_fails_leaves_the_model_as_it_was(monkeypatch):
    def fail(*_, **__):
        raise OSError("no C++ compiler")

    loaded = wrap_model(tiny_model("llama"))
    monkeypatch.setattr(compiling, "passes_of", lambda given: InductorPasses(given, TOLERANCE, fail))
    with pytest.warns(RuntimeWarning, match=r"LlamaForCausalLM: .*OSError: no C\+\+ compiler"):
        assert compile_model(loaded) is loaded


def test_a_replay_that_goes_wrong_does_no_harm():
    """The logits of the pass that shows it are the eager ones, and so are all later ones."""
    loaded = wrap_model(tiny_model("llama"))
    wrong = replace(
        loaded, passes=GraphPasses(loaded, TOLERANCE, lambda function, *_: lambda *given: spoilt(function(*given)))
    )
    logits = []
    for one in (loaded, wrong):
        session = ModelSession(one, 1, 30)
        session.forward([PROMPT])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits.append([session.forward([[7]]) for _ in range(3)])
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def spoilt(outputs):
    return tuple(output + 1 for output in outputs)


def test_caches_are_handed_on_between_sessions_and_never_shared():
    loaded = wrap_model(tiny_model("llama"))
    model = replace(loaded, passes=fixed(loaded))
    first, second = ModelSession(model, 1, 30), ModelSession(model, 1, 30)
    for session in (first, second):
        session.forward([PROMPT])
    assert first._cache is not second._cache
    cache = first._cache
    with torch.inference_mode():
        cache.buffers()[0].fill_(float("nan"))
    first.close()
    third = ModelSession(model, 1, 60)
    assert third._cache is cache
    assert not any(buffer.isnan().any() for buffer in cache.buffers())
    assert ModelSession(model, 2, 30)._cache is not cache
    third.close()
    assert ModelSession(model, 1, 1000)._cache.capacity >= 1000  # it did not fit
    for session in [ModelSession(model, 1, 30) for _ in range(4)]:
        session.close()
    assert len(model.passes._idle) == IDLE


def test_a_cache_with_hidden_states_is_handed_on_to_sessions_that_keep_the_same_layers():
    loaded = wrap_model(tiny_model("llama"))
    model = replace(loaded, passes=fixed(loaded))
    first = ModelSession(model, 1, 30, hidden_layers=(1, 2))
    for tokens in (PROMPT, PROMPT, [7]):  # the first pass is not captured
        first.forward([tokens])
    cache = first._cache
    first.close()
    assert not any(states.any() for states in cache.states(30).values())
    for other in ((), (2,), (2, 1)):
        assert ModelSession(model, 1, 30, hidden_layers=other)._cache is not cache
    again, graphs = ModelSession(model, 1, 30, hidden_layers=(1, 2)), dict(cache.graphs)
    assert again._cache is cache
    expected = ModelSession(loaded, 1, 30, hidden_layers=(1, 2))
    for tokens in (PROMPT[::-1], [7]):
        torch.testing.assert_close(again.forward([tokens]), expected.forward([tokens]), atol=1e-4, rtol=1e-4)
    assert cache.graphs == graphs  # nothing was captured anew
    assert len(graphs) == 2
    torch.testing.assert_close(again.hidden_states, expected.hidden_states, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_is_compiled_only_when_asked(device, monkeypatch):
    loaded = wrap_model(tiny_model("llama"))
    monkeypatch.setattr(type(loaded), "device", torch.device(device))
    assert compile_as_set(loaded, "auto") is loaded
    assert compile_as_set(loaded, False) is loaded
    assert TargetConfig(model="x").compile == "auto"


def test_what_cannot_have_a_fixed_shape_is_refused_with_the_reason():
    loaded = wrap_model(tiny_model("llama")).row_by_row()
    assert compile_as_set(loaded, "auto") is loaded
    with pytest.raises(ModelError, match=r"take a forward pass each.*Remove `compile`"):
        compile_model(loaded)


def test_models_made_of_a_compiled_one_do_not_run_its_passes():
    model = compiled(wrap_model(tiny_model("llama")), "symbolic")
    assert pack(model).passes is None
    assert first_layers(model, 1).passes is None


def test_a_model_is_compiled_once_for_all_that_load_it_alike(tmp_path, monkeypatch):
    made = []

    def passes_of(loaded):
        made.append(loaded.model.dtype)
        return GraphPasses(loaded, TOLERANCE, lambda function, *_: function)

    monkeypatch.setattr(compiling, "passes_of", passes_of)
    tiny_model("llama").save_pretrained(tmp_path)
    target = load_model(tmp_path, compile=True)
    settings = {"name": "transformer", "model": str(tmp_path), "compile": True}
    for drafter in (settings, settings, {"name": "chain", "drafters": ["prompt-copy", settings]}):
        for gamma in (2, 3):
            found = Decoder(target, drafter, gamma=gamma, temperature=0).generate(PROMPT, max_new_tokens=9)
            assert found.tokens == Decoder(target, temperature=0).generate(PROMPT, max_new_tokens=9).tokens
    assert made == [torch.float32]
    load_model(tmp_path, compile=True, dtype="bfloat16")
    load_model(tmp_path, compile=True, inflate={"layers": 1})
    assert made[1:] == [torch.bfloat16, torch.float32]
    tiny_model("llama", seed=1).save_pretrained(tmp_path)
    changed = load_model(tmp_path, compile=True)
    assert not changed.model.lm_head.weight.equal(target.model.lm_head.weight)
    changed.passes.failed = "a test"
    assert load_model(tmp_path, compile=True).passes.failed is None


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [lambda model: model, pack, lambda model: quantize(model, 8)])
def test_code_is_kept_for_models_of_the_same_shape_which_run_it_with_their_own_weights(prepare):
    for seed in (0, 1):
        counters.clear()
        model = compile_model(prepare(wrap_model(tiny_model("llama", seed=seed))))
        assert model.passes.failed is None
    assert counters["inductor"]["fxgraph_cache_hit"]
