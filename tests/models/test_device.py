"""What is fetched from a device."""

from __future__ import annotations

import torch

from specdec_core.models.device import fetched, fetched_together


def test_one_transfer_gives_what_each_part_holds():
    parts = [
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.tensor([[5, 6, 7], [8, 9, 2**40 + 1]]),
        torch.empty(2, 0, dtype=torch.long),
        torch.tensor([[-1], [0]]),
    ]
    assert fetched(*parts) == fetched_together(parts) == [part.tolist() for part in parts]
