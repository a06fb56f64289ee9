"""Measuring the acceptance rate, c and T(k) of drafters, for `specdec measure`.

Importing this imports no torch.
"""

from specdec_core.measurement.measurement_file import Measurement, Rate, read_measurement, write_measurement

__all__ = ["Measurement", "Rate", "read_measurement", "write_measurement"]
