"""Tiny targets, what they wrote, and progress that is kept."""

import json
import signal

import pytest

from specdec_core.models import load_model
from specdec_drafters.settings import TransformerTrainerConfig
from specdec_drafters.training.sources import gather
from tests.drafters.training.support import Recorder
from tests.tiny import tiny_model

SMALL = {"length": 24, "held_out": 300, "batch_tokens": 512, "layers": 1, "width": 32, "heads": 2}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return the folder of a tiny model, saved once."""
    root = tmp_path_factory.mktemp("models")

    def models(family="llama", vocab=40, seed=0):
        path = root / f"{family}-{vocab}-{seed}"
        if not path.exists():
            tiny_model(family, vocab, seed).save_pretrained(path)
        return path

    return models


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """Sources in token ids, every other one with a target."""
    path = tmp_path_factory.mktemp("sources") / "sources.jsonl"
    lines = []
    for number in range(32):
        line = {"source": [2 + (7 * number + position * position) % 38 for position in range(3 + number % 5)]}
        if number % 2:
            line["target"] = [2 + (number + position) % 38 for position in range(6)] + [1]
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def config_for(models, sources):
    """Return the config of a short training, changed as wanted."""

    def config_for(family="llama", **changes):
        given = {"target": str(models(family)), "output": "unused", "samples": 2000, "steps": 30, **SMALL}
        if family in ("t5", "bart"):
            given["sources"] = sources
        return TransformerTrainerConfig(**{**given, **changes})

    return config_for


@pytest.fixture(scope="session")
def targets(models):
    """Return a tiny target, loaded once."""
    loaded = {}

    def targets(family="llama"):
        if family not in loaded:
            loaded[family] = load_model(models(family))
        return loaded[family]

    return targets


@pytest.fixture(scope="session")
def materials(config_for, targets):
    """Return what a tiny target wrote, written once."""
    gathered = {}

    def materials(family="llama"):
        if family not in gathered:
            gathered[family] = gather(config_for(family), targets(family), Recorder())
        return gathered[family]

    return materials


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts():
    """Give Ctrl-C its usual meaning, which it has not where the tests run in the lower_order."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def progress():
    return Recorder()
