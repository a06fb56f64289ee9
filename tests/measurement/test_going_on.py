"""When a measurement goes on from an earlier one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specdec_core.errors import ConfigError
from specdec_core.measurement.measure import measure
from tests.lossless import small_target
from tests.measurement.support import bench


class Nobody:
    """Is told of stages, and shows nothing."""

    def stage(self, what, total=None):
        """Nothing is shown."""

    def advance(self, done, note=""):
        """Nothing is shown."""


def test_a_target_that_was_trained_again_is_another(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    bench_of_it = replace(bench(small_target("cpu")), description={"model": str(tmp_path)})
    before, _ = measure(bench_of_it, [], Nobody())
    measure(bench_of_it, [], Nobody(), before=before)
    (tmp_path / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(ConfigError, match=f"differs in what is in {re.escape(str(tmp_path))}; --overwrite"):
        measure(bench_of_it, [], Nobody(), before=before)
