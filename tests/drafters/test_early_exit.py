"""The early-exit drafter: q is that of the target's first layers; the exit is measured, given or trained."""

import pytest
import torch

from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import compile_model, first_layers, load_model, pack, wrap_model
from specdec_core.testing.harness.state import changed_state, model_state
from specdec_core.theory.speed import walltime_improvement
from specdec_drafters.early_exit.drafter import (
    EarlyExitDrafter,
    ExitCard,
    ExitWorth,
    best_of,
    cost_share,
    exit_after,
    exit_alphas,
    write_exit,
)
from specdec_drafters.settings import EarlyExitConfig
from specdec_drafters.training.losses import overlap
from specdec_drafters.training.rows import pad_rows
from tests.compiled import symbolic
from tests.drafters.support import (
    SOURCES,
    assert_as_fresh,
    assert_q_through_drafts_commits_and_ragged_rows,
    info_for,
    names_of,
    request_for,
)
from tests.tiny import tiny_model

V = 40


def target_of(family="llama", layers=3):
    key = {"gpt2": "n_layer", "t5": "num_decoder_layers"}.get(family, "num_hidden_layers")
    return wrap_model(tiny_model(family, V, **{key: layers}))


def drafter_for(target, **settings):
    return EarlyExitDrafter(EarlyExitConfig(**settings), target.info())


def translator_for(target, seed=3):
    size = target.features.hidden_size
    return torch.eye(size) + 0.3 * torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


def write_random(path, target, layers=1, **card):
    card = {"target": target.name, "fingerprint": target.features.fingerprint(), "layers": layers, **card}
    write_exit(path, translator_for(target), ExitCard(**card), torch.float32)
    return str(path)


def exit_q(target, layers, tokens, translator=None, source=None):
    """Return q after `tokens`, `[V]`, from hidden states of the whole target, its norm and its head."""
    model = target.model
    with torch.inference_mode(), target.features.capture_layers([layers]) as seen:
        model(**names_of(tokens, source), use_cache=False)
        state = seen[layers][0, -1]
        norms = {"llama": lambda: model.model.norm, "gpt2": lambda: model.transformer.ln_f}
        norm = norms.get(model.config.model_type, lambda: model.decoder.final_layer_norm)()
        state = norm(state)
        if model.config.model_type == "t5" and model.config.scale_decoder_outputs:
            state = state * model.config.d_model**-0.5
        if translator is not None:
            state = translator @ state
        return model.get_output_embeddings()(state).softmax(-1)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_q_is_that_of_the_exit_through_drafts_commits_and_ragged_rows(family, trained, tmp_path):
    target = target_of(family)
    if trained:
        drafter = drafter_for(target, model=write_random(tmp_path / "early-exit.safetensors", target, 2))
    else:
        drafter = drafter_for(target, layers=2)
    assert drafter.layers == 2
    translator = translator_for(target) if trained else None
    session = assert_q_through_drafts_commits_and_ragged_rows(
        drafter,
        lambda tokens, source: exit_q(target, 2, tokens, translator, source),
        V,
        SOURCES if target.encoder_decoder else None,
    )
    assert_as_fresh(drafter, *session)


@pytest.mark.parametrize("trained", [False, True])
def test_the_target_is_not_changed(trained, tmp_path):
    target = pack(target_of())
    state = model_state(target.model, None)
    settings = {"model": write_random(tmp_path / "exit.safetensors", target)} if trained else {}
    with pytest.warns(PluginWarning) if not trained else pytest.MonkeyPatch.context():
        drafter = drafter_for(target, **settings)
    session = drafter.open(info_for(1, V))
    session.propose(request_for([[2, 3, 4]], [3]))
    assert changed_state(state, target.model, None) == []
    assert target.features.num_layers == 3


def test_the_exit_is_the_one_with_the_best_ratio_on_what_the_target_writes(monkeypatch):
    target = target_of(layers=4)
    alphas = {1: 0.5, 2: 0.9, 3: 0.91}
    seen = {}

    def known(exits, of, rows, temperature=1.0):
        seen.update(exits=sorted(exits), rows=len(rows), tokens=rows.positions, target=of)
        return alphas

    monkeypatch.setattr("specdec_drafters.early_exit.drafter.exit_alphas", known)
    shares = {n: cost_share(first_layers(target, n), target) for n in alphas}
    best = max(alphas, key=lambda n: max(walltime_improvement(alphas[n], g, shares[n]) for g in range(1, 17)))
    assert best == 2
    assert drafter_for(target).layers == 2
    assert seen["exits"] == [1, 2, 3]
    assert seen["tokens"] > 100
    assert seen["target"] is target


def test_a_target_without_a_good_exit_is_told_so_and_drafts_with_the_best():
    with pytest.warns(PluginWarning, match=r"no exit of LlamaForCausalLM is expected .* Train an exit with"):
        drafter = drafter_for(target_of())
    assert drafter.layers in (1, 2)


def test_the_acceptance_rates_of_exits():
    target = target_of()
    rows = pad_rows([[1, 5, 9, 3], [1, 7, 2, 2, 8, 4]], [2, 1])
    exits = {n: first_layers(target, n) for n in (1, 2)}
    found = exit_alphas(exits, target, rows, temperature=0.8)
    for layers, exit_ in exits.items():
        betas = []
        for row, first in (([1, 5, 9, 3], 2), ([1, 7, 2, 2, 8, 4], 1)):
            with torch.inference_mode():
                p, q = (each.model(torch.tensor([row])).logits[0] for each in (target, exit_))
            betas += overlap(p[first - 1 : -1], q[first - 1 : -1], 0.8).tolist()
        assert found[layers] == pytest.approx(sum(betas) / len(betas), abs=1e-5)


def test_the_cost_is_the_share_of_the_weights_that_are_read():
    target = load_model("builtin:target", packed=False)  # 12 layers; the head is the token embedding
    config = target.model.config
    head = config.vocab_size * config.hidden_size
    layer = sum(weight.numel() for weight in target.model.model.layers[0].parameters())
    whole = 12 * layer + head + config.hidden_size
    assert cost_share(exit_after(target, 3), target) == (3 * layer + head + config.hidden_size) / whole
    size = config.hidden_size
    trained = cost_share(exit_after(target, 3, torch.eye(size)), target)
    assert trained == (3 * layer + head + size + size**2) / whole

    t5 = target_of("t5", 2)
    decoder = {id(w): w.numel() for w in (*t5.model.decoder.parameters(), *t5.model.lm_head.parameters())}
    if t5.model.lm_head.weight is not t5.model.shared.weight:
        decoder.pop(id(t5.model.shared.weight))
    read = sum(decoder.values())
    layer = sum(weight.numel() for weight in t5.model.decoder.block[1].parameters())
    assert cost_share(exit_after(t5, 1), t5) == (read - layer) / read


def test_the_best_gamma_and_its_speedup():
    good, bad = ExitWorth(1, 0.8, 0.1), ExitWorth(2, 0.3, 0.5)
    assert good.speedup == max(walltime_improvement(0.8, gamma, 0.1) for gamma in range(1, 17))
    assert bad.gamma == 0
    assert bad.speedup == pytest.approx(1.3 / 1.5)
    assert best_of([bad, good]) is good


def test_an_exit_beyond_the_last_layer_is_refused():
    with pytest.raises(ModelError, match="has 3 layers, and 3 were asked for; take 1 to 2"):
        drafter_for(target_of(), layers=3)
    with pytest.raises(ModelError, match="fewer than two layers: there is none to exit after"):
        drafter_for(target_of(layers=1))


def test_a_trained_exit_of_another_target_or_number_of_layers_is_refused(tmp_path):
    target = target_of()
    path = write_random(tmp_path / "exit.safetensors", target, layers=1)
    assert drafter_for(target, model=path, layers=1).layers == 1
    with pytest.raises(ConfigError, match=r"layers is 2, but .* was trained for an exit after 1 layers"):
        drafter_for(target, model=path, layers=2)
    with pytest.raises(ModelError, match=r"was trained for another target, LlamaForCausalLM \(fingerprint"):
        drafter_for(target_of(layers=4), model=path)
    other = wrap_model(tiny_model("llama", V, num_hidden_layers=3, hidden_size=48))
    forged = write_random(tmp_path / "forged.safetensors", target, fingerprint=other.features.fingerprint())
    with pytest.raises(ModelError, match="hidden states of size 32; this one's is 48"):
        drafter_for(other, model=forged)


def test_what_is_no_trained_exit_is_refused(tmp_path):
    target = target_of()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"the folder has no early-exit.safetensors. Train an exit with"):
        drafter_for(target, model=str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"unknown exit 'builtin:target'.*builtin:early-exit"):
        drafter_for(target, model="builtin:target")


@pytest.mark.slow
def test_beside_a_compiled_target_it_is_compiled_too(monkeypatch):
    target = target_of()
    monkeypatch.setattr("specdec_core.models.fast.compiling.passes_of", symbolic)
    assert drafter_for(target, layers=1).loaded.passes is None
    passes = drafter_for(compile_model(target), layers=1).loaded.passes
    assert passes is not None
    assert passes.failed is None
