"""A token tree in one forward pass: each node sees its own path only, at its own depth, in every family."""

import pytest
import torch

from specdec_core.models import ModelSession, wrap_model
from specdec_core.models.load.probe import probe_model, uncached_logits
from specdec_core.models.run.cached_tree import CachedTree
from tests.models.inputs import OTHERWISE, random_tokens, run_otherwise
from tests.tiny import FAMILIES, tiny_model

PARENTS = torch.tensor([[-1, -1, 0, 0, 1, 2, 5], [-1, 0, 1, 1, -1, -1, -1], [-1, -1, -1, -1, -1, -1, -1]])
LENGTHS = (7, 4, 0)
KEPT = ([0, 2, 5], [0, 1, 3], [])


def path(row, node):
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = int(PARENTS[row, node])
    return nodes[::-1]


def close(logits, loaded, tokens, sources, row):
    expected = uncached_logits(loaded, tokens, sources and sources[row])
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", [*FAMILIES, *(one for one in OTHERWISE if "apart" not in one)])
def test_the_logits_of_each_node_are_those_of_its_path(family, device):
    loaded, sources = run_otherwise(family, device)
    rows = [[0]] * 3 if sources else [random_tokens(n, n) for n in (11, 3, 5)]
    nodes = torch.tensor([random_tokens(7, 30 + row) for row in range(3)])
    session = ModelSession(loaded, 3, 64, sources)
    logits = session.forward(rows, nodes, LENGTHS, PARENTS)
    for row, count in enumerate(LENGTHS):
        for node in range(-1, count):
            close(logits[row, node + 1], loaded, rows[row] + nodes[row, path(row, node)].tolist(), sources, row)
    session.keep(KEPT)
    rows = [row + nodes[number, kept].tolist() for number, (row, kept) in enumerate(zip(rows, KEPT, strict=True))]
    assert session.lengths == list(map(len, rows))
    logits = session.forward([[20], [21], [22]])
    for row in range(3):
        close(logits[row, 0], loaded, [*rows[row], 20 + row], sources, row)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_may_grow_by_levels_of_different_size(family, device):
    loaded, sources = run_otherwise(family, device)
    rows = [[0, 7]] * 3 if sources else [random_tokens(n, n) for n in (8, 2, 5)]
    session = ModelSession(loaded, 3, 64, sources)
    session.forward(rows)
    first, second = torch.tensor([[11, 12, 13]] * 3), torch.tensor([[14, 15]] * 3)
    session.forward([[]] * 3, first, (3, 2, 1), torch.full((3, 3), -1))
    logits = session.forward([[]] * 3, second, (2, 2, 1), torch.tensor([[0, 2], [1, 0], [0, 0]]))
    for row, position, tokens in [(0, 1, [13, 15]), (1, 0, [12, 14]), (1, 1, [11, 15]), (2, 0, [11, 14])]:
        close(logits[row, position], loaded, rows[row] + tokens, sources, row)
    session.keep([[2, 4, 9], [0, 3], [0, 1]])  # node 9 was drafted and not read
    logits = session.forward([[1], [1], [1]])
    for row, tokens in enumerate([[13, 15], [11, 15], [11, 14]]):
        close(logits[row, 0], loaded, [*rows[row], *tokens, 1], sources, row)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_may_be_pruned_and_go_on(family, device):
    loaded, sources = run_otherwise(family, device)
    rows = [[0]] * 3 if sources else [random_tokens(n, n) for n in (8, 2, 5)]
    session = ModelSession(loaded, 3, 64, sources)
    tokens = torch.tensor([[11, 12, 13, 14, 15]] * 3)
    parents = [[-1, 0, 1, 0, 1], [-1, -1, 0, 1, 3], [-1, 0, 1, 2, 3]]
    session.forward(rows, tokens, (5, 5, 3), torch.tensor(parents))
    # Two paths with a common beginning; two that have none; a line, which becomes text.
    session.prune([[0, 1, 2, 4], [0, 1, 3], [0, 1, 2]], [2, 0, 3])
    assert session.lengths == [len(row) + n for row, n in zip(rows, (4, 3, 3), strict=True)]
    more = torch.tensor([[16, 17, 18]] * 3)
    logits = session.forward([[]] * 3, more, (3, 3, 2), torch.tensor([[0, 1, 3], [2, 0, -1], [-1, 0, 0]]))
    wanted = [
        [[11, 12, 13, 16], [11, 12, 15, 17], [11, 12, 15, 17, 18]],
        [[12, 14, 16], [11, 17], [18]],
        [[11, 12, 13, 16], [11, 12, 13, 16, 17]],
    ]
    for row, paths in enumerate(wanted):
        for position, path in enumerate(paths):
            close(logits[row, position], loaded, rows[row] + path, sources, row)
    session.prune([[1, 3, 4], [1, 2, 3], []], [2, 0, 0])
    logits = session.forward([[]] * 3, more, (1, 1, 1), torch.tensor([[0] * 3, [2] * 3, [-1] * 3]))
    wanted = [[11, 12, 15, 17, 18, 16], [12, 14, 16, 16], [11, 12, 13, 16]]
    for row, path in enumerate(wanted):
        close(logits[row, 0], loaded, rows[row] + path, sources, row)


def test_a_rollback_forgets_the_tree(device):
    loaded, _ = run_otherwise("llama", device)
    session = ModelSession(loaded, 1, 32)
    session.forward([[5, 6]], torch.tensor([[7, 8]]), (2,), torch.tensor([[-1, -1]]))
    session.rollback([2])
    logits = session.forward([[9]], torch.tensor([[3, 4]]), (2,), torch.tensor([[-1, -1]]))
    close(logits[0, 2], loaded, [5, 6, 9, 4], None, 0)


def test_an_unknown_family_that_reads_a_tree_wrongly_takes_none(monkeypatch):
    loaded = wrap_model(tiny_model("llama"))
    loaded.model.config.model_type = "unheard-of"
    assert probe_model(loaded).family.trees

    # As a model that sees all earlier tokens, whatever the mask says.
    def places(tree, nodes, end, given=CachedTree.places):
        positions, visible, keys = given(tree, nodes, end)
        return positions, torch.ones_like(visible), keys

    monkeypatch.setattr(CachedTree, "places", places)
    probed = probe_model(loaded)
    assert probed.family.ragged
    assert not probed.family.trees
