"""The forecast for a target and a drafter on a device: T(k), D(k) and the overhead from counted work.

Nothing here is measured. Every number follows from the work of a forward pass (`ModelWork`) and a few constants of
the device (`Device`), by Theorem 3.8 with the T(k) and D(k) that come out.

References:
    Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192,
    sections 3.3 and 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdec_core.costs.forecast import best_gamma, improvement_at_cost
from specdec_core.costs.gpu.counting import ModelWork
from specdec_core.costs.gpu.device import WEIGHT_BYTES, Device, Execution, Launches, WeightType, counted_launches
from specdec_core.costs.step_costs import StepCosts


@dataclass(frozen=True)
class Setting:
    """The models, device and settings of a forecast.

    Attributes:
        device: The device.
        batch: Number of sequences.
        context: Tokens of each sequence that are cached.
        weights: Dtype of the weights of both models.
        execution: How the models run.
        count: Number of devices that share each layer of the target. The drafter runs on one.
        launches: Launches of a step outside of the models.
    """

    device: Device
    batch: int = 1
    context: int = 512
    weights: WeightType = "bfloat16"
    execution: Execution = "graph"
    count: int = 1
    launches: Launches = field(default_factory=counted_launches)


@dataclass(frozen=True)
class GpuForecast:
    """The forecast for one setting and one acceptance rate.

    Attributes:
        setting: The setting.
        alpha: Expected acceptance rate; None where acceptance lengths were given.
        gamma: The number of draft tokens: the best one, unless one was asked for.
        costs: T(k), D(k) and the overhead.
        plain: Tokens per second without a drafter, of all sequences.
        speculative: Tokens per second with it.
        memory_gb: Weights and caches of both models, in GB, on each device.
    """

    setting: Setting
    alpha: float | None
    gamma: int
    costs: StepCosts
    plain: float
    speculative: float
    memory_gb: float

    @property
    def improvement(self) -> float:
        """The factor by which decoding gets faster."""
        return self.speculative / self.plain

    @property
    def fits(self) -> bool:
        """Whether the device has the memory."""
        return self.memory_gb <= self.setting.device.memory_gb


def forecast_costs(target: ModelWork, drafter: ModelWork | float, setting: Setting, max_gamma: int) -> StepCosts:
    """Return T(k), D(k) and the overhead for drafts of up to `max_gamma` tokens.

    Args:
        target: The target.
        drafter: The drafter, which takes a forward pass for each token; or c, its time for a token over T(0).
        setting: What to make the forecast for.
        max_gamma: The longest draft.
    """

    def seconds(model: ModelWork, positions: int, count: int) -> float:
        work = model.count(positions, setting.batch, setting.context)
        return setting.device.seconds(work, weights=setting.weights, execution=setting.execution, count=count)

    verify = tuple(seconds(target, k + 1, setting.count) for k in range(max_gamma + 1))
    one = seconds(drafter, 1, 1) if isinstance(drafter, ModelWork) else drafter * verify[0]
    launch, outside = setting.device.launch_us * 1e-6, setting.launches
    more = launch * max(outside.drafted - outside.plain, 0)
    draft = tuple(k * one + (more if k else 0.0) for k in range(max_gamma + 1))
    return StepCosts(verify=verify, draft=draft, overhead=launch * outside.plain)


def gpu_forecast(
    target: ModelWork,
    drafter: ModelWork | float,
    setting: Setting,
    alpha: float | Mapping[int, float],
    *,
    gamma: int | None = None,
    max_gamma: int = 16,
) -> GpuForecast:
    """Return the forecast for a target and a drafter.

    Args:
        target: The target.
        drafter: The drafter, which takes a forward pass for each token; or c, its time for a token over T(0).
        setting: What to make the forecast for.
        alpha: Expected acceptance rate, in [0, 1]; or tokens per step by gamma, such as those of
            `SpeculationProfile.accept_lengths`, of which gammas above `max_gamma` are left out.
        gamma: The number of draft tokens; None for the best one.
        max_gamma: The largest gamma to consider.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Theorem 3.8 and section 3.5, with T(k) and D(k) of the device.
    """
    costs = forecast_costs(target, drafter, setting, max_gamma if gamma is None else gamma)
    if isinstance(alpha, Mapping):
        tokens = {0: 1.0} | {k: length for k, length in alpha.items() if k < len(costs.step)}
        if gamma is not None and gamma not in tokens:
            raise ValueError(f"gamma {gamma} was asked for; acceptance lengths are known for {sorted(tokens)}")
        factors = {k: length * costs.step[0] / costs.step[k] for k, length in tokens.items()}
        best = max(factors, key=factors.__getitem__) if gamma is None else gamma
        factor = factors[best]
    else:
        best = best_gamma((alpha,), costs.step) if gamma is None else gamma
        factor = improvement_at_cost((alpha,), best, costs.step)
    plain = setting.batch / costs.step[0]
    share = WEIGHT_BYTES[setting.weights] * 1e-9
    cached = setting.batch * (setting.context + best + 1)
    memory = (target.parameters * share + target.cached_bytes(cached) * 1e-9) / setting.count
    if isinstance(drafter, ModelWork):
        memory += drafter.parameters * share + drafter.cached_bytes(cached) * 1e-9
    return GpuForecast(
        setting=setting,
        alpha=None if isinstance(alpha, Mapping) else alpha,
        gamma=best,
        costs=costs,
        plain=plain,
        speculative=plain * factor,
        memory_gb=memory,
    )
