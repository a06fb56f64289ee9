"""The simulated GPU itself: what it computes, refuses, counts and delays."""

import copy

import pytest
import torch

from tests.simulated_gpu import counted, late_copies

pytestmark = pytest.mark.usefixtures("simulated")
DEVICE = torch.device("cuda")


def ones(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


def test_a_model_is_trained_copied_and_moved():
    layer = torch.nn.Linear(4, 2).to(DEVICE)
    layer(ones(3, 4)).pow(2).mean().backward()
    before = layer.weight.detach().clone()
    torch.optim.AdamW(layer.parameters()).step()
    assert layer.weight.grad.device == before.device == torch.device("cuda:0")
    assert not torch.equal(layer.weight, before)
    assert copy.deepcopy(layer).weight.device == before.device
    assert layer.to("cpu").weight.device.type == "cpu"


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: ones(3) + torch.ones(3),
        lambda: ones(3) + torch.ones(3, device="cuda:1"),
        lambda: ones(3).index_select(0, torch.tensor([1], device="cuda:1")),
        lambda: ones(2, 2).gather(0, torch.tensor([[0]])),
    ],
)
def test_devices_do_not_mix(mixed):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mixed()
    assert (ones(3) + torch.tensor(1.0)).tolist() == [2, 2, 2]


def test_generators_of_the_cpu_and_products_of_integers_are_refused():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device=DEVICE, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        ones(2, 2, dtype=torch.long) @ ones(2, 2, dtype=torch.long)
    numbers = [torch.rand(2, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(3)) for _ in range(2)]
    assert torch.equal(*numbers)


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        (lambda x: x[1].item(), "fetch"),
        (lambda x: x.cpu(), "fetch"),
        (lambda x: x.tolist(), "fetch"),
        (lambda x: x[x > 0], "fetch"),
        (lambda x: x.nonzero(), "fetch"),
        (lambda x: torch.tensor([1], device=DEVICE), "upload"),
        (lambda x: torch.tensor([1]).to(DEVICE), "upload"),
        (lambda x: x[torch.tensor([1])], "upload"),
        (lambda x: x[[0, 2]], "upload"),
        (lambda x: torch.tensor([1]).to(DEVICE, non_blocking=True), "upload_pageable"),
        (lambda x: torch.tensor([1]).pin_memory().to(DEVICE, non_blocking=True), "upload_pinned"),
        (lambda x: x.to("cpu", non_blocking=True), "fetch_later"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_waits_and_copies_are_counted_with_their_line(does, kind):
    x = ones(4)
    with counted() as counts:
        does(x)
    assert {event[0] for event in counts.events} == {kind}
    assert counts.of(kind) == 1
    assert counts.waits == (kind in ("fetch", "upload", "synchronize"))
    assert "tests/device/test_simulated_gpu.py:" in counts.lines(kind)


def test_launches_and_allocations_are_counted_and_views_are_neither():
    x = ones(4)
    with counted() as counts:
        y = x.view(2, 2)[0] + 1
        y.mul_(2)
        x[x > 2] = 5
        x[:2] = 3
    assert (counts.launches, counts.waits) == (5, 0)
    assert counts.allocations == 2
    held = torch.cuda.memory_allocated()
    del y
    assert torch.cuda.memory_allocated() < held


def test_a_graph_computes_when_it_is_replayed():
    x, graph = torch.zeros(4, device=DEVICE), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(3)
        out = x.cumsum(0)
    assert x.tolist() == [0] * 4
    assert out.max() > 1e30
    for times in (1, 2):
        with counted() as counts:
            graph.replay()
        assert (counts.of("replay"), counts.launches, counts.allocations) == (1, 1, 0)
        assert out.tolist() == [3 * times, 6 * times, 9 * times, 12 * times]


@pytest.mark.parametrize("does", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x[[0, 1]]])
def test_a_capture_refuses_to_wait(does):
    x = ones(4)
    graph = torch.cuda.graph(torch.cuda.CUDAGraph())
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), graph:
        does(x)


def test_late_copies_arrive_when_the_host_waits():
    x = ones(3)
    with late_copies():
        there = x.to("cpu", non_blocking=True)
        assert there.max() > 1e30
        torch.cuda.synchronize()
        assert there.tolist() == [1, 1, 1]


def test_pinned_memory_must_not_change_before_its_copy_has_ended():
    with late_copies():
        pinned = torch.ones(3).pin_memory()
        there = pinned.to(DEVICE, non_blocking=True)
        pinned[0] = 5
        with pytest.raises(RuntimeError, match="pinned memory changed before"):
            there.sum().item()
