"""Counts of each request of a batch, and the figures under vLLM's names."""

import pytest

from specdec_core.decoding.counts import RequestMetrics
from specdec_core.decoding.decoder import Decoder
from specdec_core.decoding.observers import TraceObserver
from specdec_core.interface import TokenTree
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, Gamma, TableDrafter

V = 12


@pytest.fixture(scope="module")
def target():
    return wrap_model(tiny_model("qwen3", V))


def test_figures_have_vllms_names_and_values():
    # The example of vLLM's documentation: three steps accept all, one accepts a token, 39 accept none.
    metrics = RequestMetrics(3, 50, (3,) * 43, (0,) * 39 + (1, 3, 3, 3))
    assert metrics.to_plain() == {
        "mean_acceptance_length": pytest.approx(1.2325581395348837),
        "draft_acceptance_rate": pytest.approx(0.07751937984496124),
        "acceptance_histogram": [39, 1, 0, 3],
        "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    detailed = metrics.to_plain(detailed=True)
    assert detailed["per_step_drafted"] == [3] * 43
    assert detailed["per_step_accepted"][-4:] == [1, 3, 3, 3]


def test_drafts_of_different_lengths_are_told_apart():
    metrics = RequestMetrics(4, 4, (1, 4, 1), (1, 2, 0))
    assert metrics.acceptance_histogram == [1, 1, 1, 0, 0]
    assert metrics.acceptance_histogram_by_draft_length == {"1": [1, 1], "4": [0, 0, 1, 0, 0]}


@pytest.mark.parametrize("gamma", [Gamma(3, 0, 2), Gamma(3, tree=TokenTree((-1, -1, 0)))], ids=["lines", "trees"])
def test_each_row_of_a_batch_has_its_own_counts(target, gamma):
    trace = TraceObserver()
    decoder = Decoder(target, TableDrafter(V), gamma=gamma, strict=True)
    prompts = [[1, 2], [3], [4, 5, 6]]
    result = decoder.generate(prompts, max_new_tokens=20, seed=3, observers=[trace])
    assert len({one.tokens for one in result}) == 3
    for row, one in enumerate(result):
        metrics = one.metrics
        steps = [report.outcome for report in trace.reports if report.outcome.committed[row]]
        drafted = [(step.drafted[row], step.accepted[row]) for step in steps if step.drafted[row]]
        assert metrics.steps == len(steps)
        assert list(zip(metrics.per_step_drafted, metrics.per_step_accepted, strict=True)) == drafted
        assert metrics.num_spec_tokens == gamma.max_gamma
        assert metrics.num_accepted_draft_tokens == one.origins.count("accepted")
    each, total = [one.metrics for one in result], result.metrics
    assert sum(one.steps for one in each) == total.row_steps > total.target_calls
    assert sum(one.num_draft_tokens for one in each) == total.drafted
    assert sum(one.num_accepted_draft_tokens for one in each) == total.accepted > 0
    assert sum(one.rejected for one in each) == total.rejected > 0


def test_a_request_takes_until_its_last_token(target):
    decoder = Decoder(target, CountingDrafter(V), gamma=2, temperature=0)
    prompt, stop = [1, 2], TraceObserver()
    text = decoder.generate(prompt, max_new_tokens=30, observers=[stop]).tokens
    model = wrap_model(target.model)
    object.__setattr__(model, "eos_ids", (text[0],))
    result = Decoder(model, CountingDrafter(V), gamma=2, temperature=0).generate(
        [prompt, [3, 7]], max_new_tokens=30
    )
    assert len(result[0].tokens) == 1 < len(result[1].tokens)
    assert 0 < result[0].seconds < result[1].seconds <= result.metrics.seconds
