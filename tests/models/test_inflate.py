"""An inflated model costs more and says the same."""

from __future__ import annotations

import pytest
import torch

from specdec_core.errors import ModelError
from specdec_core.models import inflate, wrap_model
from tests.tiny import tiny_model


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_inflating_keeps_the_distribution_and_the_original(family):
    loaded = wrap_model(tiny_model(family))
    size = loaded.model.num_parameters()
    larger = inflate(loaded, layers=3, width=96)
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    with torch.inference_mode():
        assert torch.equal(larger.model(ids).logits, loaded.model(ids).logits)
    assert larger.model.num_parameters() > size == loaded.model.num_parameters()
    assert larger.model.config.num_hidden_layers == loaded.model.config.num_hidden_layers + 3


def test_other_shapes_are_refused():
    with pytest.raises(ModelError, match="Llama-shaped"):
        inflate(wrap_model(tiny_model("gpt2")), layers=1)
