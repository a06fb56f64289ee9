"""The two simplest kinds of drafters: what they return is explained where it is wrong."""

from types import SimpleNamespace

import pytest
import torch

from specdec_core import AutoregressiveDrafter, DeterministicDrafter, PluginConfig
from specdec_core.interface import PluginError, Proposal, TargetInfo, TokenTree


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


@pytest.mark.parametrize(
    ("rows", "given"),
    [([[1, 2.5]], "float32"), ([[2], [True, 3]], "bool"), (["ab"], r"\['ab'\]"), ([[10**30]], r"\[\[10{30}")],
)
def test_ids_are_integers(rows, given):
    with pytest.raises(TypeError, match=f"given {given}"):
        Proposal.from_rows(rows)


class Several(DeterministicDrafter):
    """Drafts the next numbers, and the tens."""

    def draft(self, tokens, budget):
        return [tokens[-1] + 1 + n for n in range(budget)]

    def continuations(self, tokens, budget, depth):
        return [self.draft(tokens, depth), [tokens[-1] + 1, 10], [20] * depth][:budget]


class OfOne(DeterministicDrafter):
    def draft(self, tokens, budget):
        return [7] * budget


def tree_of(drafter, budget=(5, 0), depth=(2, 2)):
    request = SimpleNamespace(tokens=[[1], [2]], budget=budget, depth=depth, tree=TokenTree((-1, -1, 0)))
    proposal = drafter.open(None).propose(request)
    return [
        list(zip(tokens[:n], parents[:n], strict=True))
        for tokens, parents, n in zip(
            proposal.tokens.tolist(), proposal.parents.tolist(), proposal.lengths, strict=True
        )
    ]


def test_several_continuations_are_a_tree_that_shares_what_they_begin_with():
    drafter = Several(PluginConfig(), TargetInfo(30))
    assert drafter.drafts_trees
    assert tree_of(drafter) == [[(2, -1), (3, 0), (10, 0), (20, -1), (20, 3)], []]
    assert tree_of(drafter, budget=(4, 1), depth=(2, 1)) == [[(2, -1), (3, 0), (10, 0), (20, -1)], [(3, -1)]]
    assert rows_of(drafter) == [[2, 3, 4], []]


def rows_of(drafter):
    request = SimpleNamespace(tokens=[[1], [2]], budget=(3, 0), tree=None)
    made = drafter.open(None).propose(request)
    return [row[:n] for row, n in zip(made.tokens.tolist(), made.lengths, strict=True)]


def test_a_drafter_of_one_continuation_is_not_asked_for_trees():
    drafter = OfOne(PluginConfig(), TargetInfo(30))
    assert not drafter.drafts_trees
    assert tree_of(drafter) == [[(7, -1), (7, 0)], []]
    assert not type("Refuses", (Several,), {"drafts_trees": False}).drafts_trees


@pytest.mark.parametrize("returned", [None, 5, [1, 2], [[0.5]], ["ab"], [None]])
def test_what_is_no_list_of_continuations(returned):
    drafter = type("Mine", (Several,), {"continuations": lambda *_: returned})(PluginConfig(), TargetInfo(30))
    with pytest.raises(PluginError) as raised:
        tree_of(drafter)
    told = (
        f"Mine.continuations returned {returned!r}; it must return sequences of token ids, such as [[5, 2], [3]]"
    )
    assert str(raised.value).startswith(told)
