"""The two simplest kinds of drafters: what they return is explained where it is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specdec_core import AutoregressiveDrafter, DeterministicDrafter, PluginConfig
from specdec_core.interface import PluginError, Proposal, TargetInfo


def propose(base, name, returned):
    kind = type("Mine", (base,), {name: lambda self, *_: returned})
    request = SimpleNamespace(tokens=[[1], [2]], budget=(2, 0), tree=None, wants_more=lambda: True)
    return kind(PluginConfig(), TargetInfo(6)).open(None).propose(request)


@pytest.mark.parametrize("returned", [None, 5, [0.5], [None], ["a"], "ab", [[1]]])
def test_what_is_no_list_of_token_ids(returned):
    with pytest.raises(PluginError) as raised:
        propose(DeterministicDrafter, "draft", returned)
    told = f"Mine.draft returned {returned!r}; it must return at most `budget` token ids, such as [5, 2]"
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize("returned", [[3, 4], (3, 4), torch.tensor([3, 4])])
def test_what_is_a_list_of_token_ids(returned):
    made = propose(DeterministicDrafter, "draft", returned)
    assert (made.tokens.tolist(), made.lengths) == ([[3, 4], [0, 0]], (2, 0))


def test_what_is_no_tensor_of_logits():
    with pytest.raises(PluginError, match=r"Mine.logits returned None; it must return a float tensor \[V\]"):
        propose(AutoregressiveDrafter, "logits", None)


def test_ids_are_not_rounded():
    with pytest.raises(TypeError, match="token ids are integers; given float32"):
        Proposal.from_rows([[1, 2.5]])


@pytest.mark.parametrize(("rows", "shape"), [([], (0, 0)), ([[], []], (2, 0))])
def test_rows_may_be_empty(rows, shape):
    made = Proposal.from_rows(rows)
    assert (tuple(made.tokens.shape), made.tokens.dtype) == (shape, torch.long)
