"""Devices and shapes of published models, launches of a step, and the time of a forward pass."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specdec_core.interface.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specdec_core.costs.gpu.counting import PassWork

Execution: TypeAlias = Literal["eager", "graph", "fused"]
"""How a forward pass runs: operator by operator from Python; as a captured graph of the same kernels; or compiled,
with everything but matrix products and attention fused into those."""
WeightType: TypeAlias = Literal["float32", "bfloat16", "float16", "int8", "int4"]
"""Dtype of the weights. With int8 and int4, the rest is in bfloat16."""

REACHED: dict[WeightType, float] = {"int8": 0.78, "int4": 0.62}
"""The part of `Device.bandwidth_share` that kernels of quantized weights reach, fitted to gpt-fast's table."""
WEIGHT_BYTES: dict[WeightType, float] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int4": 0.5625}
"""Bytes of a weight; int4 with a scale and a zero point in 16 bits for each group of 64."""


PLAIN = "no drafter"
"""What is decoded without a drafter, in `host_costs`."""


@dataclass(frozen=True)
class Device:
    """A device, as a forecast knows it.

    Attributes:
        name: Its name.
        bandwidth_gbs: Memory bandwidth in GB/s, by its data sheet.
        tflops: Dense arithmetic throughput of matrix products in TFLOPS by dtype, by its data sheet.
        memory_gb: Memory in GB.
        source: Where these are from.
        bandwidth_share: The part of the bandwidth that is reached.
        kernel_us: The least time of a kernel in a captured graph, in microseconds.
        launch_us: The time to launch an operator of an eager model, in microseconds.
        all_reduce_us: The time to sum the results of several devices, in microseconds.
    """

    name: str
    bandwidth_gbs: float
    tflops: Mapping[str, float]
    memory_gb: float
    source: str
    bandwidth_share: float = 0.83
    kernel_us: float = 3.0
    launch_us: float = 10.0
    all_reduce_us: float = 20.0

    def seconds(
        self,
        work: PassWork,
        *,
        weights: WeightType = "bfloat16",
        execution: Execution = "graph",
        count: int = 1,
    ) -> float:
        """Return the time of a forward pass: each kernel takes as long as its bytes or its FLOPs, if not longer.

        Args:
            work: The pass, counted with a model of the dtype of `weights`; in bfloat16 for int8 and int4.
            weights: Dtype of the weights.
            execution: How the pass runs.
            count: Number of devices that share each layer (tensor parallelism).
        """
        quantized = weights in {"int8", "int4"}
        share = WEIGHT_BYTES[weights] / 2 if quantized else 1.0
        per_byte = 1e-9 / (self.bandwidth_gbs * self.bandwidth_share * REACHED.get(weights, 1.0)) / count
        per_flop = 1e-12 / self.tflops["bfloat16" if quantized else weights] / count
        total = launches = 0.0
        for one, times in work.operators.items():
            if execution == "fused" and not one.flops:
                continue
            moved = (one.unique if execution == "fused" else one.bytes) - one.weights * (1 - share)
            total += times * (max(moved * per_byte, one.flops * per_flop) + self.kernel_us * 1e-6)
            launches += times
        if count > 1:
            total += 2 * work.layers * self.all_reduce_us * 1e-6
        return max(total, launches * self.launch_us * 1e-6) if execution == "eager" else total


@cache
def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def devices() -> dict[str, Device]:
    """Return the devices that are known, by name."""
    return {name: Device(**fields) for name, fields in _table("devices.toml").items()}


def shapes() -> dict[str, dict[str, Any]]:
    """Return the shapes of published models, by name: the fields of their config.json."""
    return _table("shapes.toml")


@cache
def host_costs() -> dict[str, dict[str, dict[str, int]]]:
    """Return what a step costs the host, by setting (greedy, then sampled) and case: `benchmarks/launches.py`."""
    text = files(__package__).joinpath("launches.json").read_text(encoding="utf-8")
    costs: dict[str, dict[str, dict[str, int]]] = json.loads(text)
    return costs


@dataclass(frozen=True)
class Launches:
    """Launches of a step outside of the models.

    Attributes:
        plain: Without a drafter.
        drafted: With a draft.
    """

    plain: int
    drafted: int


def counted_launches(
    drafter: str = "transformer", *, sampled: bool = True, execution: Execution = "graph"
) -> Launches:
    """Return the launches of a step outside of the models that were counted for drafts of 3 tokens.

    Args:
        drafter: The name of the drafter's plugin.
        sampled: Whether the temperature is above 0.
        execution: How the models run. Unless they are eager, the step is captured. A drafter that was counted with
            eager models only takes that count.

    Raises:
        ConfigError: The drafter was not counted.
    """
    counts = list(host_costs().values())[sampled]
    suffix = "" if execution == "eager" else ", captured"
    found = counts.get(drafter + suffix) or counts.get(drafter)
    if drafter == PLAIN or found is None:
        names = (name for name in counts if name != PLAIN and not set(name) & set(",:"))
        raise ConfigError(f"launches of {drafter!r} were not counted; choose one of {', '.join(names)}.")
    return Launches(counts[PLAIN + suffix]["launches"], found["launches"])


def find_device(name: str) -> Device:
    """Return a device that is known by name.

    Raises:
        ConfigError: It is not known.
    """
    known = devices()
    if name.lower() not in known:
        raise ConfigError(f"device {name!r} is not known; choose one of {', '.join(known)}.")
    return known[name.lower()]


def find_shape(name: str) -> PretrainedConfig:
    """Return the configuration of a model: a shape that is known by name, or a folder with a config.json.

    Raises:
        ConfigError: It is neither.
    """
    from transformers import AutoConfig

    if name.lower() in shapes():
        fields = dict(shapes()[name.lower()])
        return AutoConfig.for_model(fields.pop("model_type"), **fields)
    if not (Path(name) / "config.json").is_file():
        raise ConfigError(
            f"{name!r} is neither a folder with a config.json nor one of the shapes {', '.join(shapes())}."
        )
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
