"""A cached, ragged, rolled-back forward pass equals a fresh one on the same tokens, for every family."""

import copy
import functools

import pytest
import torch

from specdec_core.interface import LAST_HIDDEN
from specdec_core.models import ModelSession, wrap_model
from tests.models.inputs import OTHERWISE, SOURCES, random_tokens, run_otherwise
from tests.tiny import ENCODER_DECODER, FAMILIES, tiny_model


def fresh_logits(loaded, row, source):
    ids = torch.tensor([row], device=loaded.device)
    with torch.inference_mode():
        if source is None:
            return loaded.model(input_ids=ids, use_cache=False).logits[0]
        return loaded.model(
            input_ids=torch.tensor([source], device=loaded.device), decoder_input_ids=ids, use_cache=False
        ).logits[0]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", [*FAMILIES, *OTHERWISE])
def test_ragged_steps_with_rollback_equal_fresh_forwards(family, rows, device):
    loaded, sources = run_otherwise(family, device)
    sources = sources and sources[:rows]
    session = ModelSession(loaded, rows, 64, sources)
    prompts = [[0]] * rows if sources else [random_tokens(n, n) for n in (9, 4, 6)[:rows]]
    committed = [list(prompt) for prompt in prompts]
    cached = [0] * rows
    script = [
        (3, (3, 1, 0), (2, 0, 0)),
        (2, (2, 2, 1), (0, 2, 1)),
        (0, (0, 0, 0), (0, 0, 0)),
        (4, (4, 0, 3), (4, 0, 1)),
    ]
    for step, (width, drafted, accepted) in enumerate(script):
        draft = (
            torch.tensor([random_tokens(width, 100 * step + row) for row in range(rows)])
            .reshape(rows, width)
            .long()
        )
        fresh = [row[done:] for row, done in zip(committed, cached, strict=True)]
        logits = session.forward(fresh, draft, drafted[:rows])
        assert logits.shape[:2] == (rows, width + 1)
        for row in range(rows):
            text = committed[row] + draft[row, : drafted[row]].tolist()
            expected = fresh_logits(loaded, text, sources and sources[row])[-drafted[row] - 1 :]
            torch.testing.assert_close(logits[row, : drafted[row] + 1], expected, atol=2e-4, rtol=1e-4)
            committed[row] += draft[row, : accepted[row]].tolist()
            cached[row] = len(committed[row])
            committed[row] += random_tokens(1, 7 * step + row)
        session.rollback(cached)
        assert session.lengths == cached


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_are_read_one_by_one_equal_fresh_forwards(family, device):
    """A draft is: rows end in between, and a rollback leads back to where a text went on otherwise."""
    loaded = wrap_model(tiny_model(family).to(device))
    sources = SOURCES[:3] if family in ENCODER_DECODER else None
    session = ModelSession(loaded, 3, 64, sources)
    rows = [[0, *random_tokens(n, n)] for n in (9, 4, 6)]
    session.forward(rows)
    reads = [*[(1, 1, 1)] * 3, *[(1, 0, 1)] * 2, None, *[(1, 1, 1)] * 10, *[(0, 1, 1)] * 2]
    for step, counts in enumerate(reads):
        if counts is None:
            for row in rows:
                del row[-2:]
            session.rollback(list(map(len, rows)))
            continue
        new = torch.tensor([random_tokens(1, 3 * step + row) for row in range(3)])
        logits = session.forward([()] * 3, new, counts)
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            row += new[number, :count].tolist()
            if count:
                expected = fresh_logits(loaded, row, sources and sources[number])[-1:]
                torch.testing.assert_close(logits[number], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.eager
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_ragged_rows_share_a_forward_pass_and_leave_the_models_positions(family, device):
    model = tiny_model(family).to(device)
    if family == "bart":  # as one that was spread over devices
        embedding = model.get_decoder().embed_positions
        embedding.forward = functools.update_wrapper(functools.partial(embedding.forward), embedding.forward)
    loaded = wrap_model(model)
    before = fresh_logits(loaded, [0, 5, 6, 7], SOURCES[0])
    passes = []
    hook = model.get_decoder().register_forward_hook(lambda _m, _i, _o: passes.append(1))
    session = ModelSession(loaded, 3, 64, SOURCES)
    session.forward([[0]] * 3, torch.tensor([[5, 6]] * 3), (2, 0, 1))
    session.rollback([1, 1, 2])
    session.forward([[7], [8], [9]], torch.tensor([[5, 6]] * 3), (0, 2, 1))
    hook.remove()
    assert len(passes) == 2
    torch.testing.assert_close(fresh_logits(loaded, [0, 5, 6, 7], SOURCES[0]), before, atol=0, rtol=0)


@pytest.mark.eager
@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_a_ragged_forward_pass_that_fails_leaves_the_models_positions(family):
    loaded = wrap_model(tiny_model(family))
    before = fresh_logits(loaded, [0, 5, 6, 7], SOURCES[0])
    session = ModelSession(loaded, 2, 64, SOURCES[:2])
    session.forward([[0, 5], [0, 5]])
    session.rollback([2, 1])
    last = loaded.model.get_decoder().get_submodule("block.1" if family == "t5" else "layers.1")

    def stop(*_):
        raise KeyboardInterrupt

    hook = last.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        session.forward([[7], [8]])
    hook.remove()
    torch.testing.assert_close(fresh_logits(loaded, [0, 5, 6, 7], SOURCES[0]), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_a_copy_of_a_model_that_was_decoded_has_weights_of_its_own(family):
    model = tiny_model(family)

    def logits(model):
        session = ModelSession(wrap_model(model), 2, 64, SOURCES[:2], hidden_layers=(LAST_HIDDEN,))
        session.forward([[0, 5], [0, 5]])
        session.rollback([2, 1])
        return session.forward([[7], [8]])

    before = logits(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    torch.testing.assert_close(logits(copied), before)
    assert not logits(model).equal(before)


@pytest.mark.parametrize("family", ENCODER_DECODER)
def test_a_decoder_with_unknown_positions_gets_one_forward_pass_per_row(family, monkeypatch):
    model = tiny_model(family)
    assert wrap_model(model).family.ragged
    if family == "t5":
        asked, method = model.decoder.block[0].layer[0].SelfAttention, "compute_bias"
    else:
        asked, method = model.get_decoder().embed_positions, "forward"
    monkeypatch.setattr(type(asked), method, lambda self, query_length, key_length, cache_position: None)
    assert not wrap_model(model).family.ragged
