"""The recorder draws tokens and records their q. All ways of drawing agree."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.decoding.rows import TokenView
from specdec_core.decoding.validation import BAD_ID, BAD_SUM, BAD_TOKEN, validate, worst
from specdec_core.interface import Candidates, Dense, PluginError, PointMass, Proposal, Sparse
from specdec_core.interface.settings import SamplingSettings
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.verification import dense, density

V, GAMMA = 50, 4
CPU = torch.device("cpu")
SETTINGS = {
    "temperature 1": SamplingSettings(),
    "temperature 0.6": SamplingSettings(temperature=0.6),
    "argmax": SamplingSettings(temperature=0),
    "top-k": SamplingSettings(top_k=5),
    "temperature and top-p": SamplingSettings(temperature=0.8, top_p=0.8),
    "repetition penalty": SamplingSettings(repetition_penalty=1.5),
    "argmax with a penalty": SamplingSettings(temperature=0, repetition_penalty=1.5),
}
generator = np.random.default_rng(8)


def random_row(most=8):
    ids = np.sort(generator.permutation(V)[: generator.integers(1, most + 1)]).astype(np.int32)
    return Candidates(ids, generator.normal(size=len(ids)).astype(np.float32) - 5)


ROWS = [[random_row() for _ in range(3)] for _ in range(GAMMA)]


def logits_of(rows):
    logits = torch.full((len(rows), V), -torch.inf)
    for out, row in zip(logits, rows, strict=True):
        out[torch.from_numpy(row.ids).long()] = torch.from_numpy(row.log_weights)
    return logits


def recorder(settings=SETTINGS["temperature 1"], budget=(4, 2, 3), seeds=(1, 2, 3), keep_drafting=None):
    made = DraftRecorder(LogitsToProbs(settings), RowGenerators(seeds), len(budget), V, GAMMA, "cpu")
    made.start([[1, 2]] * len(budget), tuple(budget), keep_drafting=keep_drafting)
    return made


def written_out(proposal):
    """Return tokens and q `[B, K, V]` of what is drafted; zeros beyond each row's length."""
    q = dense(proposal.q, proposal.tokens, V).clone()
    tokens = proposal.tokens.clone()
    for row, length in enumerate(proposal.lengths):
        q[row, length:] = 0
        tokens[row, length:] = 0
    return tokens, q


@pytest.mark.parametrize("name", SETTINGS)
def test_candidates_are_sampled_like_the_same_weights_as_logits(name):
    short, long = recorder(SETTINGS[name]), recorder(SETTINGS[name])
    for position, rows in enumerate(ROWS):
        most = [row if position < n else None for row, n in zip(rows, (4, 2, 3), strict=True)]
        tokens = short.sample_candidates(most)
        assert all(token == 0 for token, row in zip(tokens, most, strict=True) if row is None)
        long.sample(logits_of(rows))
    one, other = short.proposal(), long.proposal()
    assert one.lengths == other.lengths == (4, 2, 3)
    # One number may lead to another token of the same q; a penalty then makes the next q another.
    if SETTINGS[name].repetition_penalty == 1:
        # With other settings than a temperature, what is no candidate has next to no probability.
        torch.testing.assert_close(written_out(one)[1], written_out(other)[1], rtol=1e-4, atol=1e-6)
    if SETTINGS[name].greedy:
        assert isinstance(one.q, PointMass)
        assert torch.equal(written_out(one)[0], written_out(other)[0])
    assert isinstance(one.q, Sparse) == name.startswith("temperature ") & ("top" not in name)


@pytest.mark.parametrize("name", ["temperature 1", "temperature 0.6"])
def test_tokens_are_drawn_from_the_recorded_q(name):
    rows = ROWS[0][:1]
    made = recorder(SETTINGS[name], (4,), (5,))
    seen, count = torch.zeros(V), 8000
    for _ in range(count // 4):
        made.start([[1]], (4,))
        while made.wants_more():
            made.sample_candidates(rows)
        proposal = made.proposal()
        seen += torch.bincount(proposal.tokens[0], minlength=V)
    q = dense(proposal.q, proposal.tokens, V)[0, 0]
    expected = q * count
    common = expected > 5
    statistic = ((seen - expected) ** 2 / expected)[common].sum().item()
    degrees = int(common.sum())
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5
    assert seen[~common].sum() < expected[~common].sum() + 30


def test_each_row_uses_as_many_random_numbers_as_its_budget():
    def after(ways):
        streams = RowGenerators((1, 2, 3))
        made = DraftRecorder(LogitsToProbs(SamplingSettings()), streams, 3, V, GAMMA, "cpu")
        made.start([[1]] * 3, (3, 1, 2))
        for way in ways:
            way(made)
        return streams.numbers((1, 1, 1), 1)

    def candidates(made):
        made.sample_candidates(ROWS[0])

    def sample(made):
        made.sample(logits_of(ROWS[1]))

    def draw(made):
        made.draw(torch.full((3, V), 1 / V))

    expected = [[RowGenerators((1, 2, 3)).numbers((4, 4, 4), 4)[row][n]] for row, n in enumerate((3, 1, 2))]
    assert after([sample]) == expected
    assert (
        expected == after([candidates]) == after([draw, candidates, sample]) == after([candidates, sample, draw])
    )


@pytest.mark.parametrize("name", ["temperature 1", "argmax"])
def test_tokens_drawn_in_several_ways_have_one_form_of_q(name):
    made = recorder(SETTINGS[name], (4, 4, 4))
    for _ in ROWS:
        made.draw(torch.full((3, V), 1 / V))  # of another step, and to leave no trace
    made.start([[1, 2]] * 3, (4, 4, 4))
    first = made.sample_candidates(ROWS[0])
    second = made.sample(logits_of(ROWS[1]))
    third = made.draw(torch.softmax(logits_of(ROWS[2]), dim=1))
    fourth = made.sample_candidates(ROWS[3])
    proposal = made.proposal()
    assert isinstance(proposal.q, Dense)
    drawn = [torch.tensor(first), second, third, torch.tensor(fourth)]
    assert torch.equal(proposal.tokens, torch.stack(drawn, dim=1))
    for position, rows in enumerate(ROWS):
        softmax = torch.softmax(logits_of(rows), dim=1)
        one_hot = torch.nn.functional.one_hot(drawn[position], V).float()
        expected = one_hot if name == "argmax" and position != 2 else softmax
        torch.testing.assert_close(proposal.q.probabilities[:, position], expected, rtol=1e-5, atol=1e-7)
    again = made.proposal()
    torch.testing.assert_close(again.q.probabilities, proposal.q.probabilities)
    assert not made.made(again), "a token was drawn from probabilities"


@pytest.mark.parametrize(("count", "form"), [(16, Sparse), (17, Dense), (V, Dense)])
def test_q_is_dense_where_that_is_smaller(count, form):
    rows = [Candidates(np.arange(n), generator.normal(size=n).astype(np.float32)) for n in (count, 2)]
    made = recorder(budget=(1, 1), seeds=(1, 2))
    made.sample_candidates(rows)
    proposal = made.proposal()
    assert isinstance(proposal.q, form)
    expected = torch.softmax(logits_of(rows), dim=1)
    torch.testing.assert_close(dense(proposal.q, proposal.tokens, V)[:, 0], expected, rtol=1e-5, atol=1e-7)


def test_the_confidence_is_q_of_the_drafted_token():
    shown = []

    def watch(confidence):
        shown.append(list(confidence))
        return [True, False, True]

    for name in ("temperature 0.6", "argmax"):
        shown.clear()
        made = recorder(SETTINGS[name], (2, 2, 1), keep_drafting=watch)
        tokens = made.sample_candidates(ROWS[0])
        made.sample_candidates([ROWS[1][0], None, None])
        assert not made.wants_more()
        assert made.proposal().lengths == (2, 1, 1)
        softmax = torch.softmax(logits_of(ROWS[0]) / (0.6 if name != "argmax" else 1), dim=1)
        expected = softmax.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(shown[0]), expected, rtol=1e-5, atol=1e-7)
        assert all(map(math.isnan, shown[1][1:]))  # rows that drew nothing


def test_rows_of_the_wrong_number_or_size_are_an_error():
    made = recorder()
    with pytest.raises(PluginError, match="2 rows were given; the batch has 3"):
        made.sample_candidates(ROWS[0][:2])
    with pytest.raises(PluginError, match="None was given for row 1, which may still take 2 tokens"):
        made.sample_candidates([ROWS[0][0], None, ROWS[0][2]])
    outside = Candidates(np.array([1, V]), np.zeros(2, np.float32))
    with pytest.raises(PluginError, match=r"within the vocabulary \(0 to 49\)"):
        made.sample_candidates([*ROWS[0][:2], outside])
    with pytest.raises(PluginError, match="row 1 is a ndarray; expected Candidates or None"):
        made.sample_candidates([ROWS[0][0], np.zeros(V), ROWS[0][2]])
    spent = recorder(budget=(0, 0, 0))
    with pytest.raises(PluginError, match="budget is spent"):
        spent.sample_candidates(ROWS[0])


# Forks


@pytest.mark.parametrize("name", ["temperature 1", "argmax", "top-k"])
def test_a_fork_has_a_record_and_a_budget_of_its_own(name):
    made = recorder(SETTINGS[name])
    request = made
    before = request.sample(logits_of(ROWS[0]))
    one, two = request.fork([1, 2, 0]), request.fork((0, 2, 3))
    assert one.budget == (1, 2, 0)
    assert one.tokens is request.tokens
    two.sample(logits_of(ROWS[1]))
    one.sample_candidates([*ROWS[2][:2], None])
    assert one.proposal().lengths == (1, 1, 0)
    assert two.proposal().lengths == (0, 1, 1)
    assert request.proposal().lengths == (1, 1, 1)
    assert torch.equal(request.proposal().tokens[:, 0], before)
    assert one.wants_more()
    one.sample(logits_of(ROWS[3]))
    assert not one.wants_more()
    assert request.wants_more()
    q = dense(one.proposal().q, one.proposal().tokens, V)
    if name == "temperature 1":
        torch.testing.assert_close(q[:2, 0], torch.softmax(logits_of(ROWS[2][:2]), dim=1), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(q[:, 1], torch.softmax(logits_of(ROWS[3]), dim=1), rtol=1e-5, atol=1e-7)


def test_forks_draw_with_numbers_of_their_own():
    uniform = torch.full((1, V), 1 / V)
    streams = RowGenerators((7,))
    made = DraftRecorder(LogitsToProbs(SamplingSettings()), streams, 1, V, GAMMA, "cpu")
    made.start([[1]], (3,))
    tokens = [made.draw(uniform).item()]
    fork = made.fork((2,))
    tokens += [fork.draw(uniform).item(), fork.draw(uniform).item()]
    numbers = RowGenerators((7,)).numbers((6,), 6)[0]
    # The parent took three numbers at its first draw, the fork two.
    assert tokens == [int(numbers[n] * V) for n in (0, 3, 4)]
    assert streams.numbers((1,), 1)[0][0] == numbers[5]


def test_buffers_of_forks_are_reused_and_trusted_in_their_step_only():
    made = recorder(SETTINGS["top-k"])
    fork = made.fork((1, 1, 1))
    fork.sample(logits_of(ROWS[0]))
    first = fork.proposal()
    assert made.made(first)
    assert not made.made(Proposal(first.tokens.clone(), first.lengths, first.q))
    address = first.q.probabilities.data_ptr()
    made.start([[1]] * 3, (2, 2, 2))
    assert not made.made(first)
    again = made.fork((2, 2, 2))
    assert again is fork
    assert made.fork((1, 1, 1)) is not fork
    again.sample(logits_of(ROWS[1]))
    assert again.proposal().lengths == (1, 1, 1)
    assert again.proposal().q.probabilities.data_ptr() == address
    again.draw(torch.full((3, V), 1 / V))
    assert not made.made(again.proposal())


@torch.inference_mode()  # as in a step
def test_what_sample_returns_belongs_to_the_drafter():
    made = recorder(budget=(1, 1, 1))
    made.sample(logits_of(ROWS[0])).fill_(V)
    proposal = made.proposal()
    assert made.made(proposal)
    assert proposal.tokens.max() < V


def test_a_shortened_proposal_is_trusted_and_a_replaced_one_is_checked():
    made = recorder(budget=(2, 2, 2))
    for _ in range(2):
        made.sample(logits_of(ROWS[0]))
    proposal = made.proposal()
    shorter = proposal.shortened((1, 0, 2))
    assert made.made(shorter)
    assert shorter.lengths == (1, 0, 2)
    assert not made.made(replace(proposal, lengths=(1, 0, 2)))
    assert not made.made(replace(proposal, tokens=proposal.tokens.flip(1)))


@pytest.mark.parametrize("rows", [[[V], [0], [0]], [[-1], [0], [0]], [[0]], [[0]] * 4])
def test_tokens_of_an_inner_loop_are_ids_of_the_vocabulary(rows):
    with pytest.raises(PluginError, match=f"expected 3 rows of token ids from 0 to {V - 1}"):
        recorder().extend(rows, None)


@pytest.mark.parametrize("shape", [(3, 1, V), (3, 2, 1), (2, 2, V), (3, V)])
def test_q_of_an_inner_loop_has_a_distribution_for_each_token(shape):
    with pytest.raises(PluginError, match=r"extend\(\) was given q of shape .*; \[B, K, V\] is \(3, 2, 50\)"):
        recorder().extend([[1, 2], [3], []], torch.full(shape, 1 / V))


def test_q_of_another_ones_inner_loop_is_checked():
    made = recorder()
    made.extend([[1], [2], [3]], torch.full((3, 1, V), 0.5))
    assert not made.made(made.proposal())


@pytest.mark.parametrize("budget", [(5, 2, 3), (4, 2), (4, -1, 3)])
def test_a_fork_cannot_have_a_larger_budget(budget):
    with pytest.raises(PluginError, match=r"from 0 to the request's own: \[4, 2, 3\]"):
        recorder().fork(budget)


def test_a_fork_after_tokens_continues_them_within_what_is_left():
    made = recorder(SETTINGS["repetition penalty"], keep_drafting=lambda confidence: [True, False, True])
    made.sample(logits_of(ROWS[0]))
    fork = made.fork((9, 1, 2), after=[[5], [6], [7, 8]])
    assert fork.tokens == [[1, 2, 5], [1, 2, 6], [1, 2, 7, 8]]
    assert fork.budget == (3, 0, 1), "the controller stopped row 1, and row 2 has three tokens in all"
    fork.sample(logits_of(ROWS[1]))
    assert fork.proposal().lengths == (1, 0, 1)
    found = dense(fork.proposal().q, fork.proposal().tokens, V)[2, 0]
    to_probs = LogitsToProbs(SETTINGS["repetition penalty"])
    torch.testing.assert_close(found, to_probs(logits_of(ROWS[1][2:]), [[1, 2, 7, 8]])[0])
    assert not made.made(fork.proposal()), "it is checked where a drafter returns it"


def test_tokens_of_forks_become_the_committed_ones():
    made, rows = recorder(), [[1, 2], [3], [4, 5]]
    made.start([TokenView(row) for row in rows], (4, 2, 3))
    fork = made.fork((1, 1, 1), after=[[5], [6], []]).fork((1, 0, 0), after=[[7], [], []])
    assert fork.tokens == [[1, 2, 5, 7], [3, 6], [4, 5]]
    for row in rows:
        row += [9]
    made.settle()
    assert fork.tokens == [[1, 2, 9], [3, 9], [4, 5, 9]]
    rows[0].append(8)
    assert fork.tokens[0] == [1, 2, 9, 8]


@pytest.mark.parametrize("after", [[[1]], [[V], [], []], [[], [1, 2, 3], []]])
def test_a_fork_continues_with_few_known_tokens_of_each_row(after):
    with pytest.raises(PluginError, match=r"fork\(\) was given \[.*(expected 3 rows|own budget is \[4, 2, 3\])"):
        recorder().fork((0, 0, 0), after=after)


# Tokens of an inner loop


def test_tokens_of_an_inner_loop_are_taken_up_to_the_budget():
    made = recorder(budget=(4, 2, 0))
    q = torch.rand(3, 3, V)
    assert made.extend([(5, 6), (7,), ()], q, drawn_by_core=True) == [True, True, False]
    assert made.extend([(8,), (9, 10, 11), (3,)], q.flip(1), drawn_by_core=True) == [True, False, False]
    proposal = made.proposal()
    assert proposal.lengths == (3, 2, 0)
    assert proposal.tokens[:2].tolist() == [[5, 6, 8], [7, 9, 0]]
    assert torch.equal(proposal.q.probabilities[0, :3], torch.stack([q[0, 0], q[0, 1], q[0, 2]]))
    assert torch.equal(proposal.q.probabilities[1, :2], torch.stack([q[1, 0], q[1, 2]]))
    assert made.made(proposal)
    made.start([[1]] * 3, (1, 1, 1))
    assert made.proposal().tokens.shape == (3, 0)


def test_the_controller_stops_a_row_within_the_tokens_of_an_inner_loop():
    shown = []

    def watch(confidence):
        shown.append(list(confidence))
        return [value > 0.5 for value in confidence]

    q = torch.full((2, 3, V), 0.9)
    q[0, 1] = 0.1
    made = recorder(budget=(4, 4), seeds=(1, 2), keep_drafting=watch)
    assert made.extend([(5, 6, 7), (8,)], q) == [False, True]
    assert made.proposal().lengths == (2, 1)
    assert shown[0] == pytest.approx([0.9, 0.9])
    assert shown[1] == pytest.approx([0.1, math.nan], nan_ok=True)


def test_taken_and_drawn_tokens_do_not_mix():
    made = recorder()
    made.sample(logits_of(ROWS[0]))
    with pytest.raises(PluginError, match="fork the request"):
        made.extend([(1,), (1,), (1,)], None)
    made = recorder()
    made.extend([(1,), (1,), (1,)], None)
    with pytest.raises(PluginError, match="fork the request"):
        made.sample(logits_of(ROWS[0]))


# Sparse q that a drafter builds itself


def sparse(change=lambda **_: None):
    parts = {
        "ids": torch.tensor([[[4, 1, 4], [0, 9, 9]]]),
        "probabilities": torch.tensor([[[0.3, 0.7, 0.0], [0.9, 0.1, 0.0]]]),
    }
    change(**parts)
    return parts


def judged(parts, tokens=((4, 9),), lengths=(2,)):
    proposal = Proposal(torch.tensor(tokens), lengths, Sparse(**parts))
    return validate(proposal, (2,), V, CPU)


def test_a_valid_sparse_q_passes_validation():
    proposal, fault = judged(sparse())
    assert fault is None
    torch.testing.assert_close(density(proposal.q, proposal.tokens), torch.tensor([[0.3, 0.1]]))
    cut, fault = judged(sparse(), lengths=(1,))
    assert fault is None
    assert cut.q.ids.shape == cut.q.probabilities.shape == (1, 1, 3)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ids, **_: ids[0, 0, 0].fill_(-1), BAD_ID),
        (lambda ids, **_: ids[0, 0, 1:].fill_(V), BAD_ID),
        (lambda ids, **_: ids[0, 0].copy_(torch.tensor([5, 1, 4])), BAD_TOKEN),
        (lambda probabilities, **_: probabilities[0, 0].copy_(torch.tensor([0.5, 0.7, 0.0])), BAD_SUM),
        (lambda probabilities, **_: probabilities[0, 0].copy_(torch.tensor([0.5, 0.7, -0.2])), BAD_SUM),
        (lambda probabilities, **_: probabilities[0, 0, 1].fill_(float("nan")), BAD_SUM),
        (lambda probabilities, **_: probabilities[0, 1].copy_(torch.tensor([1.0, 0.0, 0.0])), BAD_TOKEN),
    ],
)
def test_an_invalid_sparse_q_is_detected(change, code):
    assert worst(judged(sparse(change))[1].tolist(), (2,)) == code


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("ids", lambda ids: ids[..., :-1], r"sparse q has ids .* both must be \[1, 2, 'S'\]"),
        ("probabilities", lambda q: q[..., :-1], r"sparse q has ids .* both must be \[1, 2, 'S'\]"),
        ("ids", torch.Tensor.float, "ids of sparse q are of dtype float32"),
    ],
)
def test_a_sparse_q_of_the_wrong_shape_or_dtype_is_an_error(part, change, message):
    parts = sparse()
    with pytest.raises(PluginError, match=message):
        judged({**parts, part: change(parts[part])})
