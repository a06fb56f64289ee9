from pathlib import Path

import pytest

from specdec_core.study import load_study
from tests.installed import site, toys  # noqa: F401


@pytest.fixture
def study(tmp_path, toys, model_folder):  # noqa: F811
    """Return a function that reads a study of toys on a tiny target."""

    def load(text, *settings):
        path = tmp_path / "study.yaml"
        path.write_text(text.format(folder=Path(model_folder)))
        return load_study(path, settings)

    return load
