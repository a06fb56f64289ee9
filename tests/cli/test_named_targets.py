"""Nothing is loaded from the hub that only a record names."""

import json

import pytest

from specdec_core.interface.errors import ModelError
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.study import load_study
from tests.commands import run_command
from tests.offline.replay.studies import study_of
from tests.study.toy_study import Recorder

EVIL = "evil/model"


@pytest.fixture
def hub(monkeypatch):
    """The requests to the hub."""
    asked = []

    def hub_options(model, *_, **__):
        asked.append(model)
        raise ModelError(f"{model}: the hub was asked.")

    for module in ("locate", "adapter"):
        monkeypatch.setattr(f"specdec_core.models.load.{module}.hub_options", hub_options)
    return asked


@pytest.fixture
def record(model_folder, tmp_path, monkeypatch):
    """Return a function that writes a record that names another target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    record_study(load_study(study_of(model_folder)), tmp_path / "r", Recorder(), RecordOptions())
    path = tmp_path / "r" / "record.json"

    def change(**target):
        header = json.loads(path.read_text())
        header["target"] |= target
        path.write_text(json.dumps(header))

    return change


def run(*arguments):
    result = run_command(*arguments)
    assert result.exit_code in (2, 3), result.output
    return " ".join(result.output.split())


REPLAY = ("replay", "r", "early-exit")


def test_a_hub_name_is_loaded_only_if_the_user_gives_it(record, hub):
    record(model=EVIL)
    assert f"--target {EVIL}" in run(*REPLAY)
    assert hub == []
    other = run(*REPLAY, "--target", "other/model")
    assert "is a record of another target" in other
    assert hub == []
    run(*REPLAY, "--target", EVIL)
    assert set(hub) == {EVIL}


def test_a_study_names_its_target(record, hub, tmp_path):
    record(model=EVIL)
    study = study_of(EVIL, {"drafter": "early-exit", "gamma": 2})
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    (tmp_path / "runs.yaml").write_text(json.dumps({"runs": study["runs"]}))
    for command in (("replay", "r", "study.yaml"), ("compare", "study.yaml", "--record", "r")):
        hub.clear()
        run(*command)
        assert set(hub) == {EVIL}
    hub.clear()
    assert f"--target {EVIL}" in run("replay", "r", "runs.yaml")  # its target is that of the record
    assert hub == []
