"""`specdec measure` on a tiny model."""

import json

import pytest
from typer.testing import CliRunner

from specdec_core.cli.main import app
from specdec_core.measurement.measurement_file import read_measurement

ECHO = "{name: echo, token: 2}"  # its default is the end of a text
QUICK = ("--tokens", "40", "--timings", "2", "--gamma", "3", "--max-new-tokens", "12")
STUDY = """\
target: {folder}
prompts: [a b c, d e, f g h]
sampling: {{top_k: 4}}
generation: {{max_new_tokens: 12, ignore_eos: true, seed: 7}}
runs:
  - {{name: two, drafter: {{name: echo, token: 2}}, gamma: 2, lenience: 0.5}}
  - {{drafter: echo, grid: {{gamma: [2, 3]}}}}
  - {{drafter: {{name: echo, token: 3}}, gamma: 1, draft_sampling: {{temperature: 0.5}}}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch, model_folder):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY.format(folder=model_folder))
    (folder / "prompts.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d e"}\n')
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def measure(toys, here):
    def run(*arguments):
        return CliRunner().invoke(app, ["measure", *map(str, arguments)])

    return run


@pytest.fixture
def by_options(measure, model_folder):
    def run(*arguments):
        return measure("--target", model_folder, "--prompts", "prompts.jsonl", *QUICK, *arguments)

    return run


def words(text):
    return " ".join(text.split())


def test_the_target_and_the_prompts_by_settings_as_in_a_study(measure, here, model_folder):
    (here / "p.csv").write_text("question\na b c\n")
    target = json.dumps({"model": str(model_folder), "attn_implementation": "eager"})
    options = ("--prompts", "{file: p.csv, column: question}", "--device", "cpu", "--dtype", "bfloat16")
    result = measure("--target", target, *options, *QUICK, "--drafter", ECHO, "--output", "m.json")
    assert result.exit_code == 0, result.output
    stored = json.loads((here / "m.json").read_text())
    chosen = ("attn_implementation", "device", "dtype")
    assert [stored["options"]["target"][key] for key in chosen] == ["eager", "cpu", "bfloat16"]
    refused = measure("study.yaml", "--dtype", "bfloat16")
    assert refused.exit_code == 2
    assert "--dtype: the study sets this" in refused.stderr


def test_a_report_and_a_file(by_options, here):
    result = by_options("--drafter", ECHO, "--lenience", "1", "--lenience", "0.5", "--output", "out/m.json")
    assert result.exit_code == 0, result.output
    assert "echo: c = " in result.stdout
    assert "T(k) / T(0)" in result.stdout
    assert "Acceptance rate by position in the draft:" in result.stdout
    found = read_measurement(here / "out" / "m.json")
    assert found.finished
    (echo,) = found.drafters
    assert echo.settings["name"] == "echo"
    assert [(one.temperature, one.lenience) for one in echo.acceptance] == [(0, 1), (0, 0.5), (1, 1), (1, 0.5)]
    assert all(one.low <= one.alpha <= one.high and one.tokens > 10 for one in echo.acceptance)
    assert echo.at(1.0, 0.5).alpha >= echo.at(1.0).alpha
    assert len(echo.seconds.step) == len(echo.seconds.draft) == len(echo.seconds.verify) == 4
    assert "written: " in result.stderr


def test_the_same_seed_measures_the_same(by_options, here):
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        chosen = ("--drafter", "echo", "--temperature", "1", "--seed", seed, "--output", name)
        assert by_options(*chosen).exit_code == 0
    one, two, three = (read_measurement(here / name).drafters[0].acceptance for name in ("one", "two", "three"))
    assert one == two
    assert one != three


def test_a_study_gives_target_prompts_sampling_and_its_distinct_drafters(measure, here):
    result = measure("study.yaml", "--output", "m.json", *QUICK[:6], "--quiet", "--temperature", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = read_measurement(here / "m.json")
    assert [one.name for one in found.drafters] == [
        "two",
        "echo(token=1)",
        "echo(token=3, draft_sampling.temperature=0.5)",
    ]
    assert found.drafters[2].draft_sampling["temperature"] == 0.5
    assert found.seed == 7
    assert found.sampling["top_k"] == 4
    assert [one.lenience for one in found.drafters[0].acceptance] == [1.0, 0.5]
    assert found.options["settings"]["ignore_eos"] is True
    assert found.options["prompts"]["count"] == 3


def test_settings_of_a_study_may_be_replaced(measure, here):
    chosen = ("--set", "prompts=[a b]", "--temperature", "0", "--lenience", "1")
    result = measure("study.yaml", "--output", "m.json", *QUICK[:6], *chosen)
    assert result.exit_code == 0, result.output
    found = read_measurement(here / "m.json")
    assert found.options["prompts"]["count"] == 1
    assert [one.lenience for one in found.drafters[0].acceptance] == [1.0]


def test_a_drafter_that_fails_is_given_up_and_the_others_go_on(by_options, here):
    chosen = (
        "--drafter",
        "{name: echo, breaks: true}",
        "--drafter",
        "{name: echo, token: 2}",
        "--drafter",
        "absent",
    )
    result = by_options(*chosen, "--output", "m.json")
    assert result.exit_code == 2
    assert "the echo broke" in result.stderr
    assert "absent failed" in result.stderr
    found = read_measurement(here / "m.json")
    assert [one.settings["token"] for one in found.drafters] == [2]
    assert not found.finished


def test_ctrl_c_keeps_finished_drafters_and_the_same_command_goes_on(by_options, here, monkeypatch):
    from specdec_core.measurement import measure as module

    real, called = module._measure_drafter, []

    def interrupted(bench, subject, *more):
        called.append(subject.name)
        if len(called) == 2:
            raise KeyboardInterrupt
        return real(bench, subject, *more)

    chosen = ("--drafter", "echo", "--drafter", "single", "--temperature", "1", "--output", "m.json")
    monkeypatch.setattr(module, "_measure_drafter", interrupted)
    result = by_options(*chosen)
    assert result.exit_code == 130
    assert "1 drafter(s) are stored in m.json" in result.stderr
    assert "echo: c = " in result.stdout
    first = read_measurement(here / "m.json").drafters
    result = by_options(*chosen)
    assert result.exit_code == 0, result.output
    assert called == ["echo", "single", "single"]
    found = read_measurement(here / "m.json")
    assert found.drafters[0] == first[0]
    assert [one.name for one in found.drafters] == ["echo", "single"]
    # Now it is finished, and stays.
    assert "--overwrite replaces it" in by_options(*chosen).stderr


def test_another_measurement_does_not_go_on_from_it(by_options, here):
    chosen = ("--drafter", "echo", "--drafter", "{name: echo, breaks: true}", "--temperature", "1", "-o", "m.json")
    assert by_options(*chosen).exit_code == 2
    before = (here / "m.json").read_bytes()
    result = by_options(*chosen, "--seed", "3")
    assert result.exit_code == 2
    assert "differs in seed, settings" in words(result.stderr)
    assert (here / "m.json").read_bytes() == before
    assert "failed: " in by_options(*chosen, "--seed", "3", "--overwrite").stderr
    assert read_measurement(here / "m.json").seed == 3


BAD = {
    "no drafter": ((), "no drafter: name one"),
    "unknown drafter": (("--drafter", "ecco"), "unknown drafter 'ecco'. Did you mean 'echo'"),
    "unknown setting": (("--drafter", "{name: echo, tokn: 1}"), "unknown key 'tokn'. Did you mean 'token'"),
    "broken YAML": (("--drafter", "{name: echo"), "--drafter"),
    "no token": (("--drafter", "echo", "--tokens", "0"), "--tokens: "),
    "temperature": (("--drafter", "echo", "--temperature", "-1"), "--temperature: "),
    "lenience of 0": (("--drafter", "echo", "--lenience", "0"), "--lenience: "),
    "lenience above 1": (("--drafter", "echo", "--lenience", "1.5"), "--lenience: "),
    "gamma": (("--drafter", "echo", "--gamma", "0"), "--gamma: "),
    "top-k": (("--drafter", "echo", "--top-k", "0"), "--top-k: "),
    "target": (("--drafter", "echo", "--target", "builtin:targe"), "builtin:target"),
    "prompts": (("--drafter", "echo", "--prompts", "none.jsonl"), "none.jsonl"),
    "--set alone": (("--drafter", "echo", "--set", "a=1"), "requires a study"),
    "study and drafter": (("study.yaml", "--drafter", "echo"), "--drafter: the study sets this"),
    "study and top-k": (("study.yaml", "--top-k", "3"), "--top-k: the study sets this"),
    "no study": (("none.yaml",), "none.yaml"),
    "output is there": (("--drafter", "echo", "--output", "prompts.jsonl"), "--overwrite replaces it"),
    "output is a folder": (("--drafter", "echo", "--output", "."), "is a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_before_torch_is_loaded(measure, here, case, monkeypatch):
    from specdec_core.cli import measure as module

    monkeypatch.setattr(module, "_measure", lambda *_: pytest.fail("the work began"))
    arguments, said = BAD[case]
    before = {path: path.read_bytes() for path in here.iterdir()}
    result = measure(*arguments)
    assert result.exit_code == 2, result.output
    assert said in words(result.stderr)
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_the_file_is_plain_json(by_options, here):
    assert by_options("--drafter", "echo", "--temperature", "1", "--output", "m.json").exit_code == 0
    said = json.loads((here / "m.json").read_text())
    assert said["specdec_measurement"] == 1
    assert said["drafters"][0]["acceptance"][0]["lenience"] == 1.0
