"""The controllers of trees: the shape they ask for, and what they refuse."""

import pytest
from pydantic import ValidationError

from specdec_core import Decoder, TraceObserver
from specdec_core.interface import BatchInfo, BestFirstTree, TokenTree
from specdec_core.interface.errors import PluginWarning
from specdec_core.models import wrap_model
from specdec_plugins.gamma.tree import TreeGamma, TreeGammaConfig
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, TableDrafter

BATCH = BatchInfo(2, 16, (9, 9), greedy=False)
VOCAB = 24


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"widths": [3, 2]}, TokenTree((-1, -1, -1, 0, 0, 1, 1, 2, 2))),
        ({"nodes": 8, "depth": 3}, BestFirstTree((3, 3, 2))),
    ],
)
def test_the_shape_that_is_asked_for(settings, shape):
    controller = TreeGamma(TreeGammaConfig(**settings))
    session = controller.open(BATCH)
    assert session.plan() == shape
    assert controller.max_gamma == len(shape)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "give 'widths', or 'nodes' and 'depth'; got none of them"),
        ({"nodes": 3, "depth": 4}, "3 nodes do not fill 4 levels"),
    ],
)
def test_a_shape_that_is_refused(settings, told):
    with pytest.raises(ValidationError, match=told):
        TreeGammaConfig(**settings)


def decode(drafter, target, gamma, **settings):
    trace = TraceObserver()
    result = Decoder(target, drafter, gamma=gamma, temperature=0, **settings).generate(
        [[1, 2, 3]], max_new_tokens=12, ignore_eos=True, observers=[trace]
    )
    return result[0].tokens, trace.reports


@pytest.mark.parametrize(
    ("drafter", "change", "settings", "told"),
    [
        (CountingDrafter, lambda target: target, {}, "CountingDrafter drafts lines only"),
        (TableDrafter, lambda target: target.without_trees(), {}, "takes lines only"),
        (TableDrafter, lambda target: target, {"lenience": 0.5}, "takes lines only"),
    ],
)
def test_where_no_tree_can_be_drafted_a_line_of_its_depth_is_and_a_warning_says_so(
    drafter, change, settings, told
):
    target = change(wrap_model(tiny_model("llama", VOCAB)))
    with pytest.warns(PluginWarning, match=f"a tree was asked for, but .*{told}; lines are drafted"):
        _, reports = decode(drafter(VOCAB), target, TreeGamma(TreeGammaConfig(widths=[3, 2])), **settings)
    assert all(report.outcome.parents is None for report in reports)
    assert max(report.asked[0] for report in reports) == 2


def test_a_tree_does_not_shrink_towards_the_end_of_a_text():
    target = wrap_model(tiny_model("llama", VOCAB))
    tokens, reports = decode(TableDrafter(VOCAB), target, TreeGamma(TreeGammaConfig(widths=[3, 2])))
    assert len(tokens) == 12
    done = 0
    for report in reports:
        room = 12 - done - 1
        assert report.outcome.drafted[0] == {0: 0, 1: 3}.get(room, 9)
        done += len(report.outcome.committed[0])
