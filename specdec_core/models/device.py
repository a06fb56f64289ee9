"""Devices and number formats: settings, descriptions, synchronization, inference mode.

Other modules pass a `torch.device` along, and copy tensors with `moved` and numbers with `uploaded`.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError

_CPU = torch.device("cpu")
_HUGE_PAGE = 2 * 2**20
_ADVICE = (14, 25)
"""Of `madvise`: MADV_HUGEPAGE, for pages that are not in use yet, and MADV_COLLAPSE, for those that are."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def parse_device(device: str) -> torch.device:
    """Return the device that a setting names.

    Args:
        device: `auto` (a GPU if there is one, else the CPU), `cpu`, `cuda` or `cuda:N`.

    Raises:
        ModelError: torch does not know the device, specdec does not, or this machine does not have the GPU.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device {device!r} is not known to torch: use auto, cpu, cuda or cuda:N.") from error
    if parsed.type not in ("cpu", "cuda", "meta"):
        raise ModelError(
            f"device {device!r}: specdec runs on CPUs and CUDA devices: use auto, cpu, cuda or cuda:N."
        )
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r} was requested, but torch finds no GPU: use cpu or auto.")
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {device!r} was requested, but there are only {torch.cuda.device_count()} GPUs.")
    return parsed


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a device is used up, a GPU's or the CPU's."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def parse_dtype(dtype: str, device: torch.device) -> torch.dtype | str:
    """Return the `dtype` argument of `from_pretrained` for a setting.

    Args:
        dtype: The name of a torch dtype, or `auto`: float32 on a CPU, where half precision is slow, else the
            format of the stored weights.
        device: Where the model will run.
    """
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    parsed: torch.dtype = getattr(torch, dtype)
    return parsed


def describe_device(device: torch.device) -> str:
    """Return a device with its hardware: `cuda:0 (NVIDIA H100)`, `cpu (x86_64, 2 threads, huge pages)`."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return f"cuda:{index} ({torch.cuda.get_device_name(device)})"
    pages = ", huge pages" if has_huge_pages() else ""
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads{pages})"


@cache
def has_huge_pages() -> bool:
    """Return whether the kernel gives huge pages to those who ask: Linux, unless it is set to `never`."""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


def use_huge_pages(*tensors: Tensor) -> None:
    """Move tensors on the CPU to huge pages, where the kernel has them: large ones are then read faster.

    With pages of 4 KiB, the CPU has to look up 512 times as often where they are.

    Args:
        tensors: On any device. What they occupy in whole huge pages is moved.
    """
    if not has_huge_pages():
        return
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.device.type == "cpu" and storage.nbytes() >= 2 * _HUGE_PAGE:
            begin = -(-storage.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
            size = (storage.data_ptr() + storage.nbytes() - begin) // _HUGE_PAGE * _HUGE_PAGE
            for advice in _ADVICE:  # the kernel refuses it for mapped files, which does no harm
                ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), advice)


def available_memory(device: torch.device = _CPU) -> int | None:
    """Return the bytes of memory that this process can still use on a device, or None where that is not known.

    Of main memory, that is `MemAvailable` on Linux, or less where a control group (a container) sets a limit.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        free = int(re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        pass
    return free


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all queued work. Does nothing for a CPU, which runs synchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def moved(tensor: Tensor, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on a device, without waiting unless it comes from a GPU to the CPU, which then reads it.

    Args:
        tensor: On any device. From the CPU to a GPU it goes by way of pinned memory, as others may be waited for.
        device: Of the result; the tensor itself is returned if it is there already, in the dtype asked for.
        dtype: Of the result; that of the tensor by default.
    """
    if tensor.device == device and (dtype is None or dtype == tensor.dtype):
        return tensor
    device = torch.device(device)
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.to(dtype or tensor.dtype).contiguous().pin_memory()  # an expanded one cannot be pinned
    return tensor.to(device, dtype or tensor.dtype, non_blocking=device.type != "cpu")


def fetched_later(tensor: Tensor) -> Callable[[], Any]:
    """Begin to copy a tensor to the CPU; return what gives its values, as a list.

    That waits only for a GPU that has not finished the copy by then.
    """
    there = tensor.to("cpu", non_blocking=True, copy=True)
    if tensor.device.type != "cuda":
        return there.tolist
    with torch.cuda.device(tensor.device):
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

    def values() -> Any:
        if not copied.query():  # type: ignore[no-untyped-call]
            copied.synchronize()
        return there.tolist()

    return values


def uploaded(numbers: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers of Python's, or of an array, as a tensor on a device, without waiting for it.

    `torch.tensor(numbers, device=device)` waits until a GPU has finished all queued work.

    Args:
        numbers: A number, a list of numbers or of lists, or an array of numpy's, which the result may share.
        device: Where the result is.
        dtype: Of the result; what `torch.as_tensor` chooses by default.
    """
    return moved(torch.as_tensor(numbers, dtype=dtype), device)


def upload(numbers: Any, target: Tensor) -> None:
    """Copy numbers of Python's, or of an array, to a tensor, without waiting for its device; see `uploaded`."""
    source = torch.as_tensor(numbers, dtype=target.dtype)
    target.copy_(source.pin_memory() if target.device.type == "cuda" else source, non_blocking=True)


def fetched(*parts: Tensor) -> list[Any]:
    """Return tensors as lists, in one transfer if they are on a GPU: each transfer waits for it.

    Args:
        parts: `[B]` or `[B, N]` each, whole numbers or bool, on one device. On a GPU, bools come as numbers.
    """
    if parts[0].is_cpu:
        return [part.tolist() for part in parts]
    return fetched_apart(joined(parts), [part.shape[1] if part.dim() == 2 else None for part in parts])


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return whole numbers `[B]` or `[B, N]` beside each other, for `fetched_apart`."""
    return torch.cat([part if part.dim() == 2 else part[:, None] for part in parts], dim=1)


def fetched_apart(whole: Tensor, widths: Sequence[int | None]) -> list[Any]:
    """Fetch what `joined` returned, and return its parts.

    Args:
        whole: `[B, M]`, whole numbers.
        widths: N of each part; None for those of shape `[B]`.
    """
    rows = whole.tolist()
    made, start = [], 0
    for width in widths:
        end = start + (1 if width is None else width)
        made.append([row[start] if width is None else row[start:end] for row in rows])
        start = end
    return made


def inference_only(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run a function under `torch.inference_mode`.

    The mode is entered only if it is not on already. One step calls a dozen such functions inside one another, and
    entering the mode has a cost.
    """

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode():
            return function(*args, **kwargs)

    return run
