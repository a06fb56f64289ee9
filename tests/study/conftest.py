import pytest

from specdec_core.interface import ConfigError
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


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a study."""

    def write_study(text):
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_study


@pytest.fixture
def problems(write):
    """Return a function that says what is wrong with a study, each with its line and column."""

    def find(text, *settings):
        with pytest.raises(ConfigError) as caught:
            load_study(write(text), settings)
        return [line.rpartition("study.yaml:")[2] for line in str(caught.value).splitlines()]

    return find


@pytest.fixture(scope="module")
def finished_studies():
    """Results of the studies that the tests of a module share."""
    return {}


@pytest.fixture
def result_of(study, finished_studies):
    """Return a function that runs a study like `study`, once per module; for tests that only read the result."""
    from specdec_core.study.run.runner import run_study
    from tests.study.toy_study import Recorder

    def run(*given):
        if given not in finished_studies:
            finished_studies[given] = run_study(study(*given), Recorder())
        return finished_studies[given]

    return run
