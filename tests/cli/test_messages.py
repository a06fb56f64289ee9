"""A newcomer's mistakes in the first hour: each message says what was given and what to write instead."""

import pytest

from tests.commands import run_command

STUDY = "target: builtin:target\nprompts: [import os]\nruns:\n  - drafter: prompt-copy\n    gamma: 2\n"


def said(*arguments):
    result = run_command(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def problems(tmp_path):
    """Return what `specdec validate` says of a study in which a line is replaced."""

    def of(old, new):
        assert old in STUDY
        path = tmp_path / "study.yaml"
        path.write_text(STUDY.replace(old, new))
        return said("validate", path)

    return of


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("[import os]", "prompts.txt", ["{file: prompts.txt}", "['prompts.txt']"]),
        ("gamma: 2", "gamma: prompt-copy", ["'prompt-copy'. It is a drafter."]),
        ("drafter: prompt-copy", "drafter: transformer", ["key 'model'; write {name: transformer, model: ...}."]),
        ("gamma: 2", "gamma: 1000000000000", ["less than or equal to 1000", "given 1000000000000"]),
        ("  - drafter", "\t- drafter", ["this is a tab; indent with spaces"]),
    ],
)
def test_a_study_says_what_to_write_instead(problems, old, new, parts):
    message = problems(old, new)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("old", ["target: builtin:target", "drafter: prompt-copy"])
def test_a_misspelt_folder_is_found_before_anything_is_loaded(problems, tmp_path, old):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text("{}")
    message = problems(
        old, "target: bg" if old.startswith("target") else "drafter: {name: transformer, model: bg}"
    )
    assert "bg: no such folder" in message
    assert "Did you mean 'big'?" in message


PRINTS = """
    from specdec_core import DeterministicDrafter, DrafterConfig, PluginSpec, hookimpl
    print("loud: imported")

    class LoudConfig(DrafterConfig):
        pass

    class Loud(DeterministicDrafter):
        def __init__(self, config, target):
            super().__init__(config, target)
            print("loud: made")

        def draft(self, tokens, budget):
            print("loud: drafts")
            return tokens[-1:]

    @hookimpl
    def specdec_drafters():
        return [PluginSpec("drafter", "loud", "toy_loud:Loud", LoudConfig)]
"""


def test_what_a_plugin_prints_is_not_among_the_results(toys):
    toys.install("toy-loud", "toy_loud", PRINTS)
    short = ("--max-new-tokens", "3", "--temperature", "0")
    plain = run_command("generate", "import os", *short)
    loud = run_command("generate", "import os", *short, "--drafter", "loud")
    assert loud.exit_code == plain.exit_code == 0, loud.output
    assert loud.stdout == plain.stdout
    assert {"loud: imported", "loud: made", "loud: drafts"} <= set((plain.stderr + loud.stderr).splitlines())
