"""Plugins are given the core's own state: a mistake cannot change it, and so not the text."""

import numpy as np
import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.rows import TokenView
from specdec_core.interface import DeterministicDrafter
from specdec_core.models import wrap_model
from tests.drafters.chains import chain
from tests.drafters.hierarchies import hierarchy
from tests.tiny import tiny_model
from tests.toys import NO_CONFIG, CountingDrafter, Gamma, target_info

V = 40
PROMPTS = ([3, 4, 5], [7, 8])
pytestmark = pytest.mark.filterwarnings("ignore::specdec_core.PluginWarning")


class Appending(DeterministicDrafter):
    """Drafts into the committed tokens."""

    def __init__(self):
        super().__init__(NO_CONFIG, target_info(V))

    def draft(self, tokens, budget):
        for _ in range(budget):
            tokens.append(5)
        return tokens[-budget:]


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    tiny_model("llama", V, seed=5).save_pretrained(folder)
    return folder


def texts(target, drafter=None):
    decoder = Decoder(target, drafter, gamma=drafter and 3, temperature=0)
    result = decoder.generate(PROMPTS, max_new_tokens=8, ignore_eos=True)
    return [row.tokens for row in result.sequences], result.failures


@pytest.mark.parametrize("above", ["nothing", "chain", "hierarchy"])
def test_committed_tokens_cannot_be_changed(target, middle, above):
    build = {
        "nothing": lambda drafter: drafter,
        "chain": lambda drafter: chain(drafter, CountingDrafter(V), vocab=V),
        "hierarchy": lambda drafter: hierarchy(target, middle, drafter, Gamma(2)),
    }[above]
    plain, _ = texts(target)
    tokens, (failure,) = texts(target, build(Appending()))
    assert tokens == plain
    assert "the committed tokens are read-only; change a copy of them: list(tokens)" in failure.message


def test_a_view_reads_like_the_list_and_grows_with_it():
    tokens = [3, 1, 2]
    view = TokenView(tokens)
    tokens += [3]
    assert view == tokens == view.copy()
    assert TokenView([3, 1, 2, 3]) == view
    assert (len(view), view[-1], view[1:3], view[::-1]) == (4, 3, [1, 2], [3, 2, 1, 3])
    assert (view.index(3), view.index(3, 1), view.count(3), 2 in view, 9 in view) == (0, 3, 2, True, False)
    assert (view + [4], view + view) == ([3, 1, 2, 3, 4], tokens * 2)  # noqa: RUF005
    assert list(reversed(view)) == tokens[::-1]
    assert repr(view) == repr(tokens)
    assert torch.tensor([view, view]).tolist() == np.array([view, view]).tolist() == [tokens, tokens]
    view += [9]  # as with a tuple, a new list
    assert tokens == [3, 1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens.extend([5, 6]),
        lambda tokens: tokens.__setitem__(-1, 7),
        lambda tokens: tokens.__delitem__(0),
        lambda tokens: tokens.pop(),
    ],
)
def test_a_view_refuses_what_would_change_it(change):
    tokens = [3, 1]
    with pytest.raises(TypeError, match="change a copy of them"):
        change(TokenView(tokens))
    assert tokens == [3, 1]
