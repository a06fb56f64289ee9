"""The kit's harness: statistics, enumeration, tiny targets and global state."""

import random
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specdec_core.interface.settings import SamplingSettings
from specdec_core.testing import CheckFailure
from specdec_core.testing.harness import enumeration
from specdec_core.testing.harness.enumeration import (
    chi_square,
    continuations,
    p_of_groups,
    p_of_sequences,
    require_distribution,
)
from specdec_core.testing.harness.state import changed_globals, global_state, restored_globals
from specdec_core.testing.harness.tiny_target import EOS, PROMPT, discard_modified, tiny_target, uncached_logits


class TestStatistics:
    def test_rare_outcomes_share_a_bin(self):
        assert chi_square([50, 46, 1, 3], [50.0, 44.0, 3.0, 3.0]) == (pytest.approx(4 / 44 + 4 / 6), 2)

    def test_a_small_remainder_joins_the_last_bin(self):
        assert chi_square([50, 46, 4], [50.0, 49.0, 1.0]) == (0, 1)

    def test_p_values(self):
        assert p_of_groups([([7], [7.0])]) == 1
        assert p_of_groups([([99, 1], [100.0, 0.0])]) == 0
        assert p_of_groups([([60, 40], [50.0, 50.0])]) == pytest.approx(chisquare([60, 40]).pvalue)

    def test_sequences_that_fit_are_accepted_and_others_are_not(self):
        expected = {(0, 0): 0.25, (0, 1): 0.25, (1,): 0.5}
        assert p_of_sequences({(0, 0): 260, (0, 1): 240, (1,): 500}, expected) > 0.5
        assert p_of_sequences({(0, 0): 400, (0, 1): 100, (1,): 500}, expected) < 1e-6

    def test_an_impossible_sequence_is_not_accepted(self):
        assert p_of_sequences({(0,): 500, (1,): 499, (2,): 1}, {(0,): 0.5, (1,): 0.5}) == 0


class TestRequireDistribution:
    """A sample that fits ends the test early; one that does not is enlarged until it is certain."""

    EXPECTED = {(0,): 0.5, (1,): 0.5}  # noqa: RUF012

    @pytest.fixture
    def drawn(self, monkeypatch):
        """Replace decoding by draws with a given probability of 0, and record the sizes."""
        sizes = []

        def replace(p):
            def sampled(decoder, batch, count, length, seed):
                sizes.append(count)
                zeros = round(count * p)
                return Counter({(0,): zeros, (1,): count - zeros})

            monkeypatch.setattr(enumeration, "sampled", sampled)
            return sizes

        return replace

    @pytest.mark.parametrize(
        ("p", "most", "expected"),
        [(0.5, 6400, 1), (0.54, 6400, 5), (0.535, 3200, 4)],
        ids=["fits", "not", "at the end"],
    )
    def test_a_sample_is_enlarged_until_it_is_certain(self, drawn, p, most, expected):
        sizes = drawn(p)
        with pytest.raises(CheckFailure, match="6400 continuations") if p == 0.54 else nullcontext():
            require_distribution(None, self.EXPECTED, "here", batch=100, min_count=400, max_count=most)
        assert sizes == [400, 400, 800, 1600, 3200][:expected]


@pytest.mark.parametrize("encoder_decoder", [False, True])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(), SamplingSettings(top_k=2), SamplingSettings(temperature=0)]
)
def test_probabilities_of_continuations_sum_to_1(encoder_decoder, settings):
    exact = continuations(tiny_target(encoder_decoder).loaded, settings, length=3)
    assert sum(exact.values()) == pytest.approx(1)
    assert all(len(tokens) == 3 or tokens[-1] == EOS for tokens in exact)


@pytest.mark.parametrize("encoder_decoder", [False, True])
def test_probabilities_are_products_over_tokens(encoder_decoder):
    one = tiny_target(encoder_decoder)
    exact = continuations(one.loaded, SamplingSettings(), length=2)
    p = torch.softmax(uncached_logits(one.loaded, [[*one.begin(), 4]])[0, -2:].double(), dim=-1)
    assert exact[4, 2] == pytest.approx(float(p[0, 4] * p[1, 2]), rel=1e-4)


class TestATinyTarget:
    def test_is_neither_certain_nor_uniform(self):
        p = torch.softmax(uncached_logits(tiny_target().loaded, [PROMPT])[0, -1], dim=-1)
        assert 0.01 < float(p.min()) < float(p.max()) < 0.9

    def test_is_rebuilt_after_a_change(self):
        one = tiny_target()
        discard_modified()
        assert tiny_target() is one
        with torch.no_grad():
            one.loaded.model.get_output_embeddings().weight[3] = 0
        discard_modified()
        other = tiny_target()
        assert other is not one
        assert not torch.equal(
            other.loaded.model.get_output_embeddings().weight, one.loaded.model.get_output_embeddings().weight
        )


def test_global_state_is_restored():
    before = global_state()
    with restored_globals():
        torch.rand(1)
        random.random()
        np.random.random()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        assert set(changed_globals(before)) == {
            "torch's random state",
            "python's random state",
            "numpy's random state",
            "torch's gradient mode",
            "torch's default dtype",
        }
    assert changed_globals(before) == []
