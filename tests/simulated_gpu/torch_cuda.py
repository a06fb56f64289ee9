"""Names of `torch.cuda` on the simulated device: one stream, events without time, graphs that record operators."""

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

GIB = 2**30


def names(native: ModuleType) -> dict[str, Any]:
    """Return what replaces the names of `torch.cuda`."""

    def index_of(device: Any = None) -> int:
        index = device if device is None or isinstance(device, int) else torch.device(device).index
        return native.current_device() if index is None or index < 0 else index

    def generator(device: Any = None) -> torch.Generator:
        return native.default_generator(index_of(device))

    def synchronize(device: Any = None) -> None:
        native.wait("torch.cuda.synchronize")

    class Event:
        def __init__(self, **_: Any) -> None: ...
        def record(self, stream: Any = None) -> None: ...
        def wait(self, stream: Any = None) -> None: ...

        def query(self) -> bool:
            return native.finished()

        def synchronize(self) -> None:
            native.wait("torch.cuda.Event.synchronize")

    class Stream(contextlib.nullcontext):
        def __init__(self, device: Any = None, **_: Any) -> None:
            super().__init__(self)
            self.device = torch.device("cuda", index_of(device))
            self.cuda_stream = 0

        def wait_stream(self, other: Any) -> None: ...
        def wait_event(self, event: Any) -> None: ...

        def record_event(self, event: Any = None) -> Event:
            return event or Event()

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            native.wait("torch.cuda.Stream.synchronize")

    def manual_seed_all(seed: int) -> None:
        for index in range(native.device_count()):
            generator(index).manual_seed(int(seed))

    properties = SimpleNamespace(
        name="Simulated GPU", major=8, minor=0, total_memory=8 * GIB, multi_processor_count=1, warp_size=32
    )
    return {
        "_exchange_device": native.exchange_device,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "_maybe_exchange_device": native.exchange_device,
        "CUDAGraph": native.CUDAGraph,
        "Event": Event,
        "Stream": Stream,
        "current_device": native.current_device,
        "current_stream": Stream,
        "default_generators": tuple(generator(index) for index in range(native.device_count())),
        "device_count": native.device_count,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_rng_state": lambda device="cuda": generator(device).get_state(),
        "empty_cache": lambda: None,
        "graph_pool_handle": lambda: (0, 1),
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": native.is_capturing,
        "is_initialized": lambda: True,
        "mem_get_info": lambda device=None: (8 * GIB, 8 * GIB),
        "memory_allocated": lambda device=None: native.bytes(),
        "manual_seed": lambda seed: generator().manual_seed(int(seed)),
        "manual_seed_all": manual_seed_all,
        "set_device": lambda device: native.exchange_device(index_of(device)),
        "set_rng_state": lambda state, device="cuda": generator(device).set_state(state),
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "synchronize": synchronize,
    }
