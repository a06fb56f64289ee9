"""Drawing by inversion: the same index as with running sums over the whole row, for every number."""

import pytest
import torch

from specdec_core.sampling.generators import MAX_UNIFORM, draw_from_row, draw_with_total


def draw_by_row(weights, uniforms):
    drawn = [draw_from_row(row, uniform) for row, uniform in zip(weights.numpy(), uniforms.tolist(), strict=True)]
    tokens, totals = zip(*drawn, strict=True)
    return torch.tensor(tokens), torch.tensor(totals, dtype=torch.float64)


@pytest.fixture(params=[draw_with_total, draw_by_row])
def draw(request):
    return request.param


@pytest.mark.parametrize("size", [5, 128, 129, 640, 1000, 66_000])
def test_a_draw_inverts_the_running_sums(draw, size):
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(40, size, generator=generator) ** 8
    weights[torch.rand(40, size, generator=generator) < 0.5] = 0
    weights[0] = 0
    weights[0, -1] = 1  # only the last
    uniforms = torch.rand(40, generator=generator, dtype=torch.float64)
    sums = weights.double().cumsum(dim=1)
    expected = torch.searchsorted(sums, (uniforms * sums[:, -1])[:, None], right=True)[:, 0]
    index, total = draw(weights, uniforms)
    assert torch.equal(index, expected)
    assert torch.allclose(total, sums[:, -1], rtol=1e-6)


@pytest.mark.parametrize("size", [5, 129, 1000])
@pytest.mark.parametrize("uniform", [0.0, 0.5, MAX_UNIFORM])
def test_a_draw_has_weight(draw, size, uniform):
    # Weights of very different sizes, and zeros at the ends of chunks, where rounding could lead out of them.
    weights = torch.zeros(50, size)
    generator = torch.Generator().manual_seed(0)
    for row in weights:
        positions = torch.randint(0, size, (3,), generator=generator)
        row[positions] = 10.0 ** torch.randint(-30, 3, (3,), generator=generator).float()
    index, _ = draw(weights, torch.full((50,), uniform, dtype=torch.float64))
    assert (weights.gather(1, index[:, None]) > 0).all()


@pytest.mark.parametrize("size", [5, 1000])
def test_a_row_without_weights_and_one_with_nan_are_told_by_their_total(draw, size):
    weights = torch.zeros(2, size)
    weights[1, 3] = torch.nan
    index, total = draw(weights, torch.tensor([0.3, 0.7], dtype=torch.float64))
    assert total[0] == 0
    assert total[1].isnan()
    assert ((index >= 0) & (index < size)).all()
