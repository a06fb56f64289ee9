"""Transfers from a device, and how devices are named in results."""

import re
from pathlib import Path

import pytest
import torch

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import (
    describe_device,
    fetched,
    fetched_apart,
    has_huge_pages,
    joined,
    parse_device,
    use_huge_pages,
)


def test_one_transfer_gives_what_each_part_holds():
    parts = [
        torch.tensor([1, 2]),
        torch.tensor([True, False]),
        torch.tensor([[5, 6, 7], [8, 9, 2**40 + 1]]),
        torch.empty(2, 0, dtype=torch.long),
        torch.tensor([[-1], [0]]),
    ]
    apart = fetched_apart(joined(parts), [None, None, 3, 0, 1])
    assert fetched(*parts) == apart == [part.tolist() for part in parts]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("mps", "device 'mps': specdec runs on CPUs and CUDA devices"),
        ("cuda:7", "device 'cuda:7' was requested, but there are only 2 GPUs"),
        ("qpu", "device 'qpu' is not known to torch"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(monkeypatch, device, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ModelError, match=message):
        parse_device(device)


def test_the_current_gpu_has_one_name_with_and_without_its_number(monkeypatch):
    """Weights are on `cuda:0` where `cuda` was asked for, and the names are compared."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    assert describe_device(torch.device("cuda")) == "cuda:1 (NVIDIA H100)"
    assert describe_device(torch.device("cuda:1")) == "cuda:1 (NVIDIA H100)"
    assert describe_device(torch.device("cuda:0")) == "cuda:0 (NVIDIA H100)"


def test_large_tensors_move_to_huge_pages():
    if not has_huge_pages():
        pytest.skip("the kernel has no huge pages")
    tensor = torch.ones(8 * 2**20)
    use_huge_pages(tensor, torch.ones(3))
    assert tensor.sum() == tensor.numel()
    middle = tensor.data_ptr() + tensor.nbytes // 2
    for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        begin, _, end = mapping.partition(" ")[0].partition("-")
        if end and int(begin, 16) <= middle < int(end, 16):
            assert re.search(r"AnonHugePages: +[1-9]", mapping)
            assert "hg" in mapping.partition("VmFlags:")[2].split()
            break
    else:
        pytest.fail("no mapping holds the tensor")
