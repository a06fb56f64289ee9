"""Measuring the acceptance rate, c and T(k) of drafters: what `specdec measure` runs and writes.

Importing this imports no torch.
"""

from specdec_core.measurement.file import Measurement, Rate, read_measurement, write_measurement
from specdec_core.measurement.forecast import rates_by_position, seconds_by_gamma

__all__ = [
    "Measurement",
    "Rate",
    "rates_by_position",
    "read_measurement",
    "seconds_by_gamma",
    "write_measurement",
]
