"""Algorithm 1 on trees: the distribution of its tokens, worked out for every draft, is the target's.

The random numbers are integrated out. Each one decides by a threshold (a node is accepted below it, the token that
follows grows with it), which bisection finds; so nothing here is a sample, and no formula of the rule is repeated.
"""

import functools
import itertools
from collections import defaultdict

import pytest
import torch

from specdec_core.interface import Dense, PointMass, Proposal, Sparse
from specdec_core.sampling.generators import MAX_UNIFORM
from specdec_core.verification import accept
from specdec_core.verification.tree_acceptance import accept_tree, accept_tree_greedy

V = 3
UNEVEN = (-1, -1, 0, 0, 1)
CROWDED = (-1, -1, -1, -1, 0, 2)  # more siblings than there are ids
DEEP = (-1, 0, -1, 0, 1, 3)
TREES = {"uneven": UNEVEN, "crowded": CROWDED, "deep": DEEP}
HALVINGS = 20
TINY = 1e-7
"""A probability that is left out: more than bisection leaves of nothing."""
EXACT = {"rtol": 0, "atol": 1e-5}


@functools.cache
def distribution(name, path):
    """Return the distribution `[V]` of a model after a path: any numbers, an id of probability 0 now and then."""
    seed = sum((token + 1) * (V + 1) ** position for position, token in enumerate(path)) * 2 + (name == "q")
    weights = torch.rand(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.02
    if seed % 5 == 2:
        weights[seed % V] = 0
    return (weights / weights.sum()).float()


def path_to(node, parents, tokens):
    """Return the tokens on the path to a node, its own last."""
    return () if node < 0 else (*path_to(parents[node], parents, tokens), tokens[node])


def q_of(node, parents, tokens, how):
    """Return the distribution `[V]` that a node is drawn from, given all nodes before it."""
    path = path_to(parents[node], parents, tokens)
    q = distribution("q", path)
    siblings = [tokens[other] for other in range(node) if parents[other] == parents[node]]
    if how == "chosen":  # each sibling another one; the fourth is the first again
        return torch.nn.functional.one_hot((q.argmax() + len(siblings)) % V, V).float()
    if how == "without replacement":
        left = q.clone()
        left[siblings] = 0
        return left / left.sum() if left.sum() > 0 else q
    return q


def all_drafts(parents, how):
    """Return every draft `[N, K]`, its probability `[N]`, and the q of each node `[N, K, V]`."""
    drafts = [((), 1.0, ())]
    for node in range(len(parents)):
        longer = []
        for tokens, weight, before in drafts:
            q = q_of(node, parents, tokens, how)
            longer += [((*tokens, x), weight * float(q[x]), (*before, q)) for x in range(V) if q[x] > 0]
        drafts = longer
    tokens, weights, q = zip(*drafts, strict=True)
    return torch.tensor(tokens), torch.tensor(weights, dtype=torch.float64), torch.stack([*map(torch.stack, q)])


def in_form(q, form):
    """Return the q of drafts, `[N, K, V]`, in one of its forms."""
    if form == "dense":
        return Dense(q)
    if form == "sparse":
        ids = torch.tensor([2, 0, 1])
        return Sparse(ids.expand(q.shape), q[..., ids])
    return PointMass()


def target_after(parents, tokens):
    """Return p at the root and after each node of each draft, `[N, K + 1, V]`."""
    nodes = range(-1, len(parents))
    return torch.stack(
        [
            torch.stack([distribution("p", path_to(node, parents, draft)) for node in nodes])
            for draft in tokens.tolist()
        ]
    )


def threshold(true, count):
    """Return the largest u below which each of `count` statements holds; `true` takes u `[count]`."""
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = true(middle)
        low, high = torch.where(holds, middle, low), torch.where(holds, high, middle)
    return (low + high) / 2


def outcomes(parents, tokens, weights, q, p):
    """Yield the probability of every outcome of the rule, with the tokens that it emits."""
    width = len(parents)
    draft = torch.arange(len(tokens))
    numbers = torch.full((len(tokens), width + 1), MAX_UNIFORM, dtype=torch.float64)
    mass = weights

    def verdict(rows, column, u):
        given = numbers[rows]
        given[:, column] = u
        which = draft[rows]
        parts = {name: value[which] if value.dim() > 1 else value for name, value in vars(q).items()}
        shape = torch.tensor(parents).expand(len(which), width)
        proposal = Proposal(tokens[which], (width,) * len(which), type(q)(**parts), shape)
        return accept_tree(proposal, p[which], given)

    for node in range(width):

        def taken(rows, u, node=node):
            result = verdict(rows, node, u)
            real = torch.arange(width) < result.accepted[:, None]
            return (real & (result.path == node)).any(dim=1)

        every = torch.arange(len(draft))
        below = torch.zeros_like(mass)
        met = every[taken(every, torch.zeros_like(mass))]
        below[met] = threshold(lambda u, rows=met, taken=taken: taken(rows, u), len(met))
        both = torch.cat([numbers, numbers])
        both[:, node] = torch.cat([torch.zeros_like(below), torch.full_like(below, MAX_UNIFORM)])
        chances = torch.cat([mass * below, mass * (1 - below)])
        kept = chances > TINY
        draft, numbers, mass = torch.cat([draft, draft])[kept], both[kept], chances[kept]
    every = torch.arange(len(draft))
    below = [torch.zeros_like(mass)]
    for token in range(V - 1):
        below.append(threshold(lambda u, last=token: verdict(every, width, u).token <= last, len(draft)))
    below.append(torch.ones_like(mass))
    result = verdict(every, width, torch.full_like(mass, 0.5))
    ends = zip(draft.tolist(), result.accepted.tolist(), result.path.tolist(), strict=True)
    for row, (number, accepted, path) in enumerate(ends):
        emitted = tuple(tokens[number, path[:accepted]].tolist())
        for token in range(V):
            yield float(mass[row] * (below[token + 1] - below[token])[row]), (*emitted, token)


def probability(text):
    """Return the target's probability of a text."""
    factors = [distribution("p", text[:position])[token] for position, token in enumerate(text)]
    return float(torch.stack(factors).double().prod()) if text else 1.0


def texts_of(parents, how, form, accepted=None):
    """Return the distribution of the first tokens, one more than a path."""
    tokens, weights, q = all_drafts(parents, how)
    length = 1 + max(len(path_to(node, parents, tokens[0].tolist())) for node in range(len(parents)))
    mass = defaultdict(float)
    for chance, emitted in outcomes(parents, tokens, weights, in_form(q, form), target_after(parents, tokens)):
        if accepted is not None:
            accepted[len(emitted) - 1] += chance
        for rest in itertools.product(range(V), repeat=length - len(emitted)):
            text = (*emitted, *rest)
            begun = probability(emitted)
            mass[text] += chance * (probability(text) / begun if begun else 0.0)
    return mass, length


CASES = [
    ("uneven", "without replacement", "dense"),
    ("uneven", "without replacement", "sparse"),
    ("uneven", "with replacement", "sparse"),
    ("uneven", "chosen", "point mass"),
    ("crowded", "without replacement", "dense"),
    ("crowded", "chosen", "point mass"),
]
MORE = [
    ("uneven", "with replacement", "dense"),
    ("deep", "without replacement", "dense"),
    ("deep", "chosen", "point mass"),
]


@pytest.mark.parametrize(
    ("tree", "how", "form"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_what_is_emitted_has_exactly_the_targets_distribution(tree, how, form):
    accepted = defaultdict(float)
    mass, length = texts_of(TREES[tree], how, form, accepted)
    texts = list(itertools.product(range(V), repeat=length))
    found = torch.tensor([mass[text] for text in texts])
    torch.testing.assert_close(found, torch.tensor([probability(text) for text in texts]), **EXACT)
    assert min(accepted[count] for count in range(1, length)) > 0.02  # every depth is reached
    # Where each id is a sibling, one of them is accepted.
    assert accepted[0] == 0 if tree == "crowded" else accepted[0] > 0.02


def some_drafts(rows, parents, seed=0):
    """Return the tokens of a tree, q, p and uniforms, all random."""
    generator = torch.Generator().manual_seed(seed)
    width = len(parents)
    q = torch.softmax(torch.randn(rows, width, V, generator=generator), dim=2)
    tokens = torch.multinomial(q.view(-1, V), 1, generator=generator).view(rows, width)
    p = torch.softmax(torch.randn(rows, width + 1, V, generator=generator), dim=2)
    numbers = torch.rand(rows, width + 1, generator=generator, dtype=torch.float64)
    return tokens, q, p, numbers


def test_rows_of_different_trees_do_not_touch_each_other():
    rows, width = 400, 6
    shapes = [UNEVEN, CROWDED, DEEP, (-1, -1), ()]
    drafts = [some_drafts(rows, (*shape, *[-1] * (width - len(shape))), seed) for seed, shape in enumerate(shapes)]
    parents = torch.tensor([(*shape, *[0] * (width - len(shape))) for shape in shapes])
    tokens, q, p, numbers = (torch.cat(part) for part in zip(*drafts, strict=True))
    lengths = [len(shape) for shape in shapes]
    together = Proposal(
        tokens, tuple(n for n in lengths for _ in range(rows)), Dense(q), parents.repeat_interleave(rows, dim=0)
    )
    result = accept_tree(together, p, numbers)
    greedy = accept_tree_greedy(together, p)
    for index, (length, shape) in enumerate(zip(lengths, shapes, strict=True)):
        mine = slice(index * rows, (index + 1) * rows)
        alone = Proposal(
            tokens[mine, :length],
            (length,) * rows,
            Dense(q[mine, :length]),
            torch.tensor(shape, dtype=torch.long).expand(rows, length),
        )
        own = accept_tree(alone, p[mine, : length + 1], numbers[mine][:, [*range(length), width]])
        for whole, part in ((result, own), (greedy, accept_tree_greedy(alone, p[mine, : length + 1]))):
            assert torch.equal(whole.accepted[mine], part.accepted)
            assert torch.equal(whole.token[mine], part.token)
            assert torch.equal(whole.path[mine, :length], part.path)
            assert part.accepted.max() == {0: 0, 2: 1, 5: 2, 6: 2 if shape == CROWDED else 3}[length]


def test_a_tree_of_one_path_is_verified_as_a_line():
    rows, width = 500, 3
    tokens, q, p, numbers = some_drafts(rows, (-1,) * width)
    lengths = tuple(row % 4 for row in range(rows))
    line, tree = (Proposal(tokens, lengths, Dense(q), one) for one in (None, torch.arange(-1, 2).expand(rows, 3)))
    one, other = accept(line, p, None, numbers), accept_tree(tree, p, numbers)
    assert torch.equal(one.accepted, other.accepted)
    assert torch.equal(one.token, other.token)
    assert len(set(other.accepted.tolist())) == width + 1


def test_comparing_tokens_equals_sampling_with_a_one_hot_p():
    rows = 500
    for parents in TREES.values():
        tokens, q, scores, numbers = some_drafts(rows, parents)
        p = torch.nn.functional.one_hot(scores.argmax(dim=2), V).float()
        proposal = Proposal(tokens, (len(parents),) * rows, Dense(q), torch.tensor(parents).expand(rows, -1))
        slow, fast = accept_tree(proposal, p, numbers), accept_tree_greedy(proposal, scores)
        assert torch.equal(slow.accepted, fast.accepted)
        assert torch.equal(slow.token, fast.token)
        assert torch.equal(slow.path, fast.path)
        assert fast.accepted.max() > 1


def test_without_a_residual_the_next_sibling_and_the_token_are_compared_with_p():
    # p and q equal as far as floats can tell, and a comparison that rounding turned to a rejection.
    p = torch.tensor([[[0.5, 0.25, 0.25]] * 4]).expand(2, 4, V)
    q = Dense(p[:, :3] * (1 + 1e-6))
    tokens, parents = torch.tensor([[1, 1, 2]] * 2), torch.tensor([[-1, -1, -1]] * 2)
    numbers = torch.full((2, 4), MAX_UNIFORM, dtype=torch.float64)
    numbers[0, 1] = 0.9
    result = accept_tree(Proposal(tokens, (3, 3), q, parents), p, numbers)
    assert result.accepted.tolist() == [1, 0]
    assert result.path[0, 0] == 1
    assert result.token[1] == 2
    assert result.sound.all()


def test_nan_in_p_is_reported_where_it_counts():
    tokens, q, p, numbers = some_drafts(2, DEEP)
    p = p.clone()
    p[1, 0] = float("nan")
    proposal = Proposal(tokens, (len(DEEP),) * 2, Dense(q), torch.tensor(DEEP).expand(2, -1))
    assert accept_tree(proposal, p, numbers).sound.tolist() == [True, False]
    assert accept_tree_greedy(proposal, p).sound.tolist() == [True, False]
