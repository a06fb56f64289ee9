"""What is fetched from a device, and how devices are named in results."""

from __future__ import annotations

import torch

from specdec_core.models.device import describe_device, fetched, fetched_together


def test_one_transfer_gives_what_each_part_holds():
    parts = [
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.tensor([[5, 6, 7], [8, 9, 2**40 + 1]]),
        torch.empty(2, 0, dtype=torch.long),
        torch.tensor([[-1], [0]]),
    ]
    assert fetched(*parts) == fetched_together(parts) == [part.tolist() for part in parts]


def test_the_current_gpu_has_one_name_with_and_without_its_number(monkeypatch):
    """Weights are on `cuda:0` where `cuda` was asked for, and the names are compared."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    assert describe_device(torch.device("cuda")) == "cuda:1 (NVIDIA H100)"
    assert describe_device(torch.device("cuda:1")) == "cuda:1 (NVIDIA H100)"
    assert describe_device(torch.device("cuda:0")) == "cuda:0 (NVIDIA H100)"
