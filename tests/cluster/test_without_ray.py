"""`--ray` and pools without Ray."""

import sys
from types import SimpleNamespace

import pytest

from specdec_core import _version
from specdec_core.cluster import ray_pool
from specdec_core.cluster.ray_pool import run_job
from specdec_core.interface.errors import ConfigError
from tests.commands import run_command

STUDY = """\
target: builtin:target
prompts: [import os]
runs:
  - {drafter: prompt-copy, gamma: 2}
"""


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["STUDY", "--ray"], "auto"),
        (["STUDY", "--ray", "--quiet"], "auto"),
        (["STUDY", "--ray", "local"], "local"),
        (["--ray", "ray://head:10001", "STUDY"], "ray://head:10001"),
    ],
)
def test_the_address_may_be_left_out(study, monkeypatch, arguments, address):
    seen = []

    def compare(study, *_, ray, **__):
        seen.append((study.path.name, ray))
        raise ConfigError("enough")

    monkeypatch.setattr("specdec_core.cli.compare.run_comparison", compare)
    run_command("compare", *(str(study) if word == "STUDY" else word for word in arguments))
    assert seen == [("study.yaml", address)]


def test_without_ray_the_message_says_what_to_install(study, no_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["compare", study],
        ["replay", "builtin:code", "prompt-copy"],
        ["record", study, "-o", "out"],
    ):
        result = run_command(*arguments, "--ray")
        assert result.exit_code == 2, result.output
        assert "pip install 'specdec-core[ray]'" in result.stderr.replace("\n", " ")


def _third(number):
    return 3 / number


@pytest.mark.parametrize("changed", ["specdec", "torch", "specdec-mine"])
def test_a_worker_of_another_version_does_nothing(changed, monkeypatch):
    """Of specdec, of a library or of a plugin: what it would compute is not what the results say."""
    mine = SimpleNamespace(dist=SimpleNamespace(name="specdec-mine", version="1.2"), module="json")
    monkeypatch.setattr(_version, "entry_points", lambda group: [mine])
    here = _version.installed_versions.__wrapped__()
    monkeypatch.setattr(ray_pool, "installed_versions", lambda: here)
    with pytest.raises(ConfigError, match=rf"a worker has {changed} .*, and this process {changed} 0\.0\.0"):
        run_job({**here, changed: "0.0.0"}, _third, (1,))


def test_a_worker_needs_no_plugin_that_a_job_may_not_use():
    assert run_job({**_version.installed_versions(), "specdec-other": "1.0"}, _third, (3,)) == 1
