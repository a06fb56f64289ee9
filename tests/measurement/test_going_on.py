"""When a measurement goes on from an earlier one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.trainer import NoProgress
from specdec_core.measurement.measure import measure
from tests.lossless import small_target
from tests.measurement.support import context


def test_a_target_that_was_trained_again_is_another(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    bench_of_it = replace(context(small_target("cpu")), target_settings={"model": str(tmp_path)})
    before, _ = measure(bench_of_it, [], NoProgress())
    measure(bench_of_it, [], NoProgress(), before=before)
    (tmp_path / "model.safetensors").write_bytes(b"weighty")
    with pytest.raises(
        ConfigError, match=f"differs in the contents of {re.escape(str(tmp_path))}; start over with --overwrite"
    ):
        measure(bench_of_it, [], NoProgress(), before=before)
