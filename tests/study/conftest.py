import pytest

from specdec_core.study import load_study
from tests.installed import site, toys  # noqa: F401
from tests.model_folder import model_folder  # noqa: F401


@pytest.fixture
def study(request, tmp_path, toys, model_folder):  # noqa: F811
    """Return a function that reads a study of toys: `STUDY` of the module or another text, with settings."""

    def load(text=None, *settings):
        path = tmp_path / "study.yaml"
        path.write_text((text or request.module.STUDY).format(folder=model_folder))
        return load_study(path, settings)

    return load
