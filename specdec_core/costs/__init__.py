"""Costs of steps, and the speed-up that follows: T(k), D(k) and the overhead, measured, interpolated, forecast.

Importing this imports neither torch nor numpy.
"""

from specdec_core.costs.forecast import (
    Forecast,
    GammaForecast,
    best_gamma,
    forecast,
    improvement_at_cost,
)
from specdec_core.costs.interpolation import interpolated
from specdec_core.costs.machine import Machine
from specdec_core.costs.measurement import Measurement, Rate, read_measurement
from specdec_core.costs.step_costs import StepCosts, step_seconds
from specdec_core.costs.timed_steps import measured_costs

__all__ = [
    "Forecast",
    "GammaForecast",
    "Machine",
    "Measurement",
    "Rate",
    "StepCosts",
    "best_gamma",
    "forecast",
    "improvement_at_cost",
    "interpolated",
    "measured_costs",
    "read_measurement",
    "step_seconds",
]
