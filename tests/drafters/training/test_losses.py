"""The losses against their definitions, finite differences, and each other."""

import pytest
import torch

from specdec_drafters.training import losses
from specdec_drafters.training.losses import TV_SCALE, cross_entropy, distillation, overlap, tv_share

N, V = 7, 11


def kl_divergence(p_logits, logits, temperature=1.0):
    log_p, log_q = ((one / temperature).log_softmax(-1) for one in (p_logits, logits))
    return torch.where(log_p.exp() > 0, log_p.exp() * (log_p - log_q), 0.0).sum(-1)


def total_variation(p_logits, logits, temperature=1.0):
    return 1.0 - overlap(p_logits, logits, temperature)


def logits_pair(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    p, z = torch.randn(2, N, V, generator=generator, dtype=torch.float64) * 2
    return p.to(dtype), z.to(dtype).requires_grad_()


def test_total_variation_is_half_the_absolute_difference_and_one_minus_the_overlap():
    p_logits, z = logits_pair()
    p, q = p_logits.softmax(-1), z.softmax(-1)
    torch.testing.assert_close(total_variation(p_logits, z), (p - q).abs().sum(-1) / 2)
    assert total_variation(p_logits, p_logits).abs().max() < 1e-12


def test_temperature_divides_both_logits():
    p_logits, z = logits_pair()
    for function in (kl_divergence, total_variation, overlap):
        torch.testing.assert_close(function(p_logits, z, 0.5), function(2 * p_logits, 2 * z))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 3 * V, 1 << 20])
def test_the_fused_loss_and_its_gradient_are_those_of_the_definitions(monkeypatch, share, temperature, chunk):
    monkeypatch.setattr(losses, "_CHUNK_ELEMENTS", chunk)
    p_logits, z = logits_pair()
    tv = total_variation(p_logits, z, temperature)
    expected = ((1 - share) * kl_divergence(p_logits, z, temperature) + TV_SCALE * share * tv).sum()
    loss, tv_sum = distillation(p_logits, z, share, temperature)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(tv_sum, tv.sum())
    gradient = torch.autograd.grad(2.5 * loss, z)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(2.5 * expected, z)[0])
    assert not tv_sum.requires_grad


def test_the_fused_loss_takes_what_inference_mode_and_half_precision_make():
    p_logits, z = logits_pair(torch.bfloat16)
    with torch.inference_mode():
        made = p_logits * 1
    loss, _ = distillation(made, z, 0.5)
    assert loss.dtype == torch.float32
    loss.backward()
    assert z.grad.dtype == torch.bfloat16
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_token_that_the_target_excludes_makes_no_nan(share):
    p_logits, z = logits_pair()
    p_logits[:, 4] = float("-inf")
    loss, _ = distillation(p_logits, z, share)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()
    expected = kl_divergence(p_logits, z) if share == 0 else TV_SCALE * total_variation(p_logits, z)
    torch.testing.assert_close(loss, expected.sum())


def test_descending_tv_raises_alpha_by_as_much():
    p_logits, z = logits_pair()
    before = overlap(p_logits, z).sum()
    loss, tv = distillation(p_logits, z, 1.0)
    gradient = torch.autograd.grad(loss, z)[0]
    after = z - 0.01 * gradient
    gained = overlap(p_logits, after).sum() - before
    assert gained > 0
    torch.testing.assert_close(gained, tv - total_variation(p_logits, after).sum())


def test_cross_entropy_is_minus_the_mean_log_probability():
    _, z = logits_pair()
    tokens = torch.arange(N) % V
    expected = -z.float().log_softmax(-1)[torch.arange(N), tokens].mean()
    torch.testing.assert_close(cross_entropy(z, tokens), expected)


def test_the_share_of_total_variation():
    assert [tv_share("kl", done) for done in (0, 1)] == [0, 0]
    assert [tv_share("tv", done) for done in (0, 1)] == [1, 1]
    moving = [tv_share("kl-then-tv", done / 10) for done in range(11)]
    assert moving[0] == 0
    assert moving == sorted(moving)
    assert 0.5 < moving[-1] < 1
