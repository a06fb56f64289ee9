"""Costs of steps, and the speed-up that follows: T(k), D(k) and the overhead, measured, interpolated, forecast.

Importing this imports neither torch nor numpy.

Plugins import these names from here.
"""

from specdec_core.costs.forecast import best_gamma
from specdec_core.costs.measurement import Measurement, Rate, read_measurement
from specdec_core.costs.step_costs import interpolated, step_seconds

__all__ = ["Measurement", "Rate", "best_gamma", "interpolated", "read_measurement", "step_seconds"]
