"""A newcomer's mistakes in the first hour: each message says what was given and what to write instead."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdec_core import generate_with
from specdec_core.cli.main import app
from specdec_core.interface import ConfigError
from specdec_core.interface.settings import SamplingSettings
from specdec_core.study import load_study
from specdec_core.study.run.folder import exclusive_lock, exclusive_output
from specdec_drafters.prompt_copy.config import PromptCopyConfig

STUDY = "target: builtin:target\nprompts: [import os]\nruns:\n  - drafter: prompt-copy\n    gamma: 2\n"


def said(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
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
        (STUDY[STUDY.index("runs") :], "runs: []\n", ["runs: expected at least 1 entry; given an empty list"]),
        ("[import os]", "prompts.txt", ["write {file: prompts.txt} for a file", "['prompts.txt'] for a prompt"]),
        ("gamma: 2", "gamma: four", ["unknown gamma controller 'four'", "A number is allowed"]),
        ("gamma: 2", 'gamma: "4"', ["unknown gamma controller '4'", "write 4 without quotes"]),
        ("gamma: 2", "gamma: prompt-copy", ["'prompt-copy'. It is a drafter."]),
        ("gamma: 2", "gamma: 2\n    lenience: high", ["'high'", "A number is allowed"]),
        ("gamma: 2", "gamma: 2\n    rule: greedy", ["'greedy'. It is a lenience controller."]),
        ("drafter: prompt-copy", "drafter: cost-aware", ["'cost-aware'. It is a gamma controller."]),
        ("drafter: prompt-copy", "drafter: transformer", ["key 'model'; write {name: transformer, model: ...}."]),
        ("gamma: 2", "gamma: 1000000000000", ["less than or equal to 1000", "given 1000000000000"]),
        ("gamma: 2", "gamma: {name: additive, max_gamma: 10000}", ["less than or equal to 1000"]),
        ("runs:", "sampling: {temperature: null}\nruns:", ["valid number; given null"]),
        ("runs:", "generation: {stop: true}\nruns:", ["expected a list; given true"]),
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


def test_a_run_without_a_drafter_is_no_plugin_without_a_key(problems):
    message = problems("drafter: prompt-copy", "name: mine")
    assert "runs[0]: missing key 'drafter'." in message


def test_a_study_in_python_says_none_and_not_null():
    study = {"target": "builtin:target", "prompts": ["x"], "sampling": {"temperature": None}, "runs": ["random"]}
    with pytest.raises(ConfigError, match="given None"):
        load_study(study)


@pytest.mark.parametrize("drafter", ["transformer", "{name: transformer, dtype: float32}"])
def test_a_replay_names_the_drafter_and_no_run_of_a_study(drafter):
    message = said("replay", "builtin:code", drafter, "--quiet")
    assert message.startswith("drafter 'transformer': missing key 'model'; write")
    assert "runs[0]" not in message


@pytest.mark.parametrize("option", ["--gamma=4", "--lenience=0.5", "--rule=block", "--draft-beams=4"])
def test_options_about_drafts_need_a_drafter(option):
    name = option.partition("=")[0]
    more = ("--beams", "4", "--temperature", "0") if name == "--draft-beams" else ()
    assert f"{name}: given without --drafter" in said("generate", "import os", option, *more)


def test_a_callable_for_generate_is_checked_when_it_is_made():
    with pytest.raises(ConfigError, match=r"'promt-copy'\. Did you mean 'prompt-copy'"):
        generate_with(drafter="promt-copy", gamma=4)
    with pytest.raises(ConfigError, match="unknown key 'min_mach'"):
        generate_with(drafter={"name": "prompt-copy", "min_mach": 2}, gamma=4)
    with pytest.raises(ConfigError, match=r"'blok'\. Did you mean 'block'"):
        generate_with(drafter="prompt-copy", gamma=4, rule="blok")
    with pytest.raises(ConfigError, match="gamma and lenience were given without a drafter"):
        generate_with(gamma=4, lenience=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: PromptCopyConfig(min_mach=2), "unknown key 'min_mach'. Did you mean 'min_match'"),
        (lambda: PromptCopyConfig(min_match=0, max_mach=2), "Did you mean 'max_match'"),
        (lambda: SamplingSettings(temprature=0), "Did you mean 'temperature'"),
    ],
)
def test_settings_in_python_have_the_near_misses_of_a_study(settings, message):
    with pytest.raises(ValueError, match="validation error") as raised:
        settings()
    assert message in str(raised.value)
    assert "errors.pydantic.dev" not in str(raised.value)


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


def test_what_a_plugin_prints_is_not_among_the_results(toys, tmp_path):
    toys.install("toy-loud", "toy_loud", PRINTS)
    short = ("--max-new-tokens", "3", "--temperature", "0")
    plain = CliRunner().invoke(app, ["generate", "import os", *short])
    loud = CliRunner().invoke(app, ["generate", "import os", *short, "--drafter", "loud"])
    assert loud.exit_code == plain.exit_code == 0, loud.output
    assert loud.stdout == plain.stdout
    assert {"loud: imported", "loud: made", "loud: drafts"} <= set((plain.stderr + loud.stderr).splitlines())
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace("prompt-copy", "loud") + "generation: {max_new_tokens: 3}\nrepeats: 1\n")
    compared = CliRunner().invoke(app, ["compare", str(path)])
    assert compared.exit_code == 0, compared.output
    assert "loud: " not in compared.stdout
    assert "loud: drafts" in compared.stderr


def test_generate_can_be_quiet():
    result = CliRunner().invoke(app, ["generate", "import os", "--max-new-tokens", "1", "-q"])
    assert result.exit_code == 0, result.output


IN_USE = """
import sys
from pathlib import Path
from typer.testing import CliRunner
from specdec_core.cli.main import app

for arguments in [
    ["compare", "study.yaml", "--output", "out"],
    ["replay", "builtin:code", "prompt-copy", "--output", "out"],
    ["record", "study.yaml", "--output", "out"],
    ["measure", "study.yaml", "--output", "measured.json"],
    ["train", "ngram", "--ids", "ids.txt", "--output", "new/ngrams.arpa"],
]:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert "is running" in result.stderr, result.stderr
    assert "loading torch" not in result.stderr
    assert "torch" not in sys.modules, arguments
"""


def test_a_folder_in_use_is_named_before_torch_is_loaded(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    made = [exclusive_output(tmp_path / name, "one") for name in ("measured.json", "new/ngrams.arpa")]
    with exclusive_lock(tmp_path / "out"), made[0], made[1]:
        done = subprocess.run(
            [sys.executable, "-c", IN_USE], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
