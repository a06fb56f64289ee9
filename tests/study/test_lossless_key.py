"""`lossless: true`: a study that takes no run whose lenience may be below 1."""

import pytest

from specdec_core.interface import ConfigError
from specdec_core.study import load_study
from specdec_plugins.plugin import specdec_lenience_controllers

STUDY = """\
target: builtin:target
prompts: [a b c]
lossless: true
runs:
  - {drafter: random, gamma: 2}
  - {drafter: random, gamma: 3, lenience: 1}
"""


def test_a_study_is_not_asked_for_losslessness_unless_it_says_so(write):
    text = STUDY.replace("lossless: true\n", "") + "  - {drafter: random, gamma: 4, lenience: 0.5}\n"
    study = load_study(write(text))
    assert study.config.lossless is False
    assert len(study.runs) == 4


def test_what_may_be_below_1_is_refused_where_it_stands_and_what_is_always_1_is_taken(write, problems):
    added = STUDY + "  - {name: mine, drafter: random, gamma: 4, lenience: {name: budgeted, max_deviation: %s}}\n"
    (problem,) = problems(added % 0.1)
    assert problem.startswith("7:55: the lenience of run 'mine' may be below 1")
    assert "`lossless: true`" in problem
    assert len(load_study(write(added % 0)).runs) == 4


def test_it_may_be_asked_for_from_the_command_line(write, problems):
    text = STUDY.replace("lossless: true\n", "") + "  - {drafter: random, gamma: 4, lenience: 0.5}\n"
    assert problems(text, "lossless=true")[0].startswith("6:43: the lenience of run 'random-4-lenience=0.5'")
    with pytest.raises(ConfigError, match=r"--set runs\.1\.lenience=0\.5"):
        load_study(write(STUDY), ["runs.1.lenience=0.5"])


def test_every_value_of_a_grid_is_looked_at(problems):
    text = STUDY + "  - {name: swept, drafter: random, gamma: 4, grid: {lenience: [1.0, 0.5, 0.3]}}\n"
    found = problems(text)
    assert len(found) == 2
    assert found[0].startswith("7:63: the lenience of run 'swept-lenience=0.5'")
    assert found[1].startswith("7:63: the lenience of run 'swept-lenience=0.3'")


def test_a_controller_that_does_not_say_is_refused(toys, problems):
    # The settings of this one derive from PluginConfig, and not from LenienceConfig.
    text = STUDY.replace("random", "echo")
    assert problems(text)[0].startswith("6:41: the lenience of run 'echo-3-lenience=1.0' may be below 1")


def test_every_controller_that_ships_says_whether_it_is_lossless():
    assert all("lossless" in vars(spec.config) for spec in specdec_lenience_controllers())
