"""Trainers speak of options, and of what a study says."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from specdec_core.registry.flat import flat_settings
from specdec_drafters.configs import HeadsTrainerConfig, NgramTrainerConfig, TransformerTrainerConfig
from specdec_drafters.training.wording import option, usage, value


@pytest.mark.parametrize("config", [HeadsTrainerConfig, NgramTrainerConfig, TransformerTrainerConfig])
def test_options_are_those_of_the_command(config):
    assert all(option(setting.name) == setting.option for setting in flat_settings(config))


def test_values_in_words():
    assert [value(given) for given in (None, True, False, 3, "kl")] == ["not given", "on", "off", "3", "kl"]


@pytest.mark.parametrize("path", ["a/b.arpa", "1.5", "with, comma: {x}", 'quote"d', "größer 😀", "back\\slash"])
def test_a_study_reads_any_path(path):
    assert YAML(typ="safe").load(usage("ngram", "arpa", Path(path))) == {"name": "ngram", "arpa": path}
