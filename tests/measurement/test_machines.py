"""The machine of a file of `specdec measure`, for replays."""

import pytest

from specdec_core.costs import StepCosts
from specdec_core.interface import ConfigError
from specdec_core.measurement.machines import read_machine
from specdec_core.measurement.measurement_file import DrafterMeasurement, Measurement, write_measurement
from specdec_core.registry import default_registry
from specdec_core.study import load_study
from specdec_core.study.config.study import drafter_key


def drafter(name, draft, verify, **changed):
    seconds = StepCosts(draft=draft, verify=verify, overhead=0.25)
    return DrafterMeasurement(
        **{"name": name, "settings": {}, "acceptance": (), "seconds": seconds, "c": 0.1, **changed}
    )


def write(path, *drafters, batch_size=1):
    parts = {"target": "t", "device": "cuda:0 (one)", "seed": 0, "sampling": {}, "versions": {}}
    write_measurement(path, Measurement(**parts, batch_size=batch_size, drafters=drafters))
    return path


def test_a_machine_has_the_times_of_its_file(tmp_path):
    runs = [{"drafter": {"name": "prompt-copy", "min_match": 3}, "gamma": 1}, {"drafter": "random", "gamma": 1}]
    runs[1]["draft_sampling"] = {"temperature": 0.5}
    study = load_study({"target": "builtin:target", "prompts": ["a"], "runs": runs}, registry=default_registry())
    copy, random = study.runs[1:]
    file = write(
        tmp_path / "a100.json",
        drafter("copy", (0.0, 0.5, 1.0), (1.0, 2.0, 3.0), settings=copy.drafter.model_dump(mode="json")),
        drafter(
            "random",
            (0.0, 0.125),
            (2.0, 4.0),
            settings=random.drafter.model_dump(mode="json"),
            draft_sampling=random.draft_sampling.model_dump(mode="json"),
        ),
    )
    machine = read_machine(file)
    assert (machine.name, machine.device) == ("a100", "cuda:0 (one)")
    assert machine.target.verify == (1.5, 3.0), "medians, up to the longest draft of all"
    assert machine.target.overhead == 0.25
    copied = machine.costs(drafter_key(copy.drafter, None))
    assert (copied.draft, copied.verify) == ((0.0, 0.5, 1.0), machine.target.verify)
    assert machine.costs(drafter_key(random.drafter, random.draft_sampling)).draft == (0.0, 0.125)
    with pytest.raises(ConfigError, match="a100 has no times of this drafter"):
        machine.costs(drafter_key(random.drafter, None))


def test_a_file_without_a_drafter_or_of_batches_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no drafter was measured"):
        read_machine(write(tmp_path / "none.json"))
    batches = write(tmp_path / "batches.json", drafter("a", (0.0,), (1.0,)), batch_size=4)
    with pytest.raises(ConfigError, match=r"4 sequences together.*Measure with --batch-size 1"):
        read_machine(batches)


def test_the_noise_is_what_timings_of_one_drafter_and_several_drafters_disagree_by(tmp_path):
    def of(name, verify, spread):
        made = drafter(name, (0.0, 1.0), verify)
        return made.model_copy(update={"seconds": made.seconds.model_copy(update={"verify_spread": spread})})

    def noise(*drafters):
        return read_machine(write(tmp_path / "times.json", *drafters)).target.noise

    assert noise(of("a", (2.0, 3.0), ())) is None
    assert noise(of("a", (2.0, 3.0), (0.5, 0.25))) == pytest.approx(0.375)
    assert noise(of("a", (2.0, 2.0), (0.5, 0.25)), of("b", (3.0, 2.0), (0.5, 0.25))) == pytest.approx(0.1)
