"""Forward passes whose shapes do not depend on drafts."""

from dataclasses import replace

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import Drafter, ModelError
from specdec_core.interface.settings import TargetConfig
from specdec_core.models import LoadedModel, ModelSession, load_model, with_exact_shapes, wrap_model
from specdec_core.models.run.forward import ModelForward
from tests.tiny import tiny_model
from tests.toys import CountingDrafter

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]


def target(family: str, seed: int = 0, **settings) -> LoadedModel:
    """A model in bfloat16 whose sums are long enough to be rounded differently in products of other shapes."""
    # Not sharp, so that the best two tokens are often close.
    model = tiny_model(
        family, vocab=300, seed=seed, sharpness=1.0, hidden_size=256, intermediate_size=512, **settings
    )
    return wrap_model(model.to(torch.bfloat16))


class TreeCapable(CountingDrafter):
    """Drafts lines, but could draft trees."""

    drafts_trees = True


def texts(loaded: LoadedModel, drafter: str | Drafter | None, gamma: int = 4) -> list[tuple[int, ...]]:
    decoder = Decoder(loaded, drafter, gamma=None if drafter is None else gamma, temperature=0)
    return [one.tokens for one in decoder.generate(PROMPTS, max_new_tokens=40, ignore_eos=True)]


def logits(loaded: LoadedModel, *, drafted: bool) -> torch.Tensor:
    """The logits after a prompt and six tokens, which are read one by one, or as two drafts."""
    session = ModelSession(loaded, 1, 30, None, vocab_size=loaded.vocab_size)
    text = [7, 8, 9, 10, 11, 12]
    begin = [[*PROMPTS[0], text[0]]]
    if drafted:
        passes = [
            session.forward(begin, torch.tensor([text[1:4]])),
            session.forward([[text[4]]], torch.tensor([text[5:]])),
        ]
    else:
        passes = [session.forward(begin), *(session.forward([[token]]) for token in text[1:])]
    return torch.cat(passes, dim=1)


@pytest.mark.parametrize("family", ["llama", "qwen3", "builtin:target"])
def test_logits_of_a_draft_are_those_of_single_tokens_bit_by_bit(family: str) -> None:
    built_in = ":" in family
    loaded = load_model(family, dtype="bfloat16", packed=False) if built_in else target(family)
    exact = with_exact_shapes(loaded, 6)
    assert torch.equal(logits(exact, drafted=True), logits(exact, drafted=False))
    if torch.equal(logits(loaded, drafted=True), logits(loaded, drafted=False)):
        pytest.skip("shapes do not change rounding on this machine, so that this shows nothing")


def test_greedy_texts_do_not_depend_on_drafts_in_bfloat16() -> None:
    exact = with_exact_shapes(target("llama"), 5)
    assert texts(exact, None) == texts(exact, "prompt-lookup")


def test_a_drafter_changes_no_shape_of_the_target_s_passes(monkeypatch) -> None:
    exact = with_exact_shapes(target("llama"), 5)
    forward, shapes = ModelForward.run, []

    def noted(self, cache, memory, tokens, plan, keep, **inputs):
        if self.loaded is exact:
            shapes[-1].add((*tokens.shape, plan.end))
        return forward(self, cache, memory, tokens, plan, keep, **inputs)

    monkeypatch.setattr(ModelForward, "run", noted)
    for drafter in (None, "prompt-lookup", TreeCapable(300)):
        shapes.append(set())
        texts(exact, drafter)
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(shapes[0]) == 2  # the prompts, and every step


def test_rejected_tokens_and_other_rows_leave_no_trace() -> None:
    loaded = with_exact_shapes(target("llama"), 6)
    session = ModelSession(loaded, 2, 30, None, vocab_size=loaded.vocab_size)
    session.forward([PROMPTS[0], PROMPTS[1]], torch.tensor([[20, 21, 22], [23, 24, 0]]), [3, 2])
    session.rollback([len(PROMPTS[0]) + 1, len(PROMPTS[1])])
    found = session.forward([[30], [31]], torch.tensor([[32], [33]]))
    plain = ModelSession(loaded, 2, 30, None, vocab_size=loaded.vocab_size)
    plain.forward([PROMPTS[0], PROMPTS[1]])
    plain.forward([[20], []])
    one = plain.forward([[30], [31]])
    two = plain.forward([[32], [33]])
    assert torch.equal(found, torch.cat([one, two], dim=1))


def test_a_draft_that_is_too_long_is_refused_with_the_number_that_it_needs() -> None:
    exact = with_exact_shapes(target("llama"), 3)
    with pytest.raises(ModelError, match="exact_shapes: 31"):
        texts(exact, "random", gamma=30)


def test_what_cannot_have_one_shape_is_refused() -> None:
    plain = target("llama")
    assert with_exact_shapes(plain, False) is plain
    assert [with_exact_shapes(plain, n).exact_shapes for n in (True, 5, 16, 17)] == [16, 16, 16, 32]
    with pytest.raises(ModelError, match="compile"):
        with_exact_shapes(replace(plain, passes=object()))
    with pytest.raises(ValueError, match="compile"):
        TargetConfig(model="m", exact_shapes=True, compile=True)
