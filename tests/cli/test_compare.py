"""`specdec compare` on a tiny model."""

import json
import re

import pytest

from tests.commands import run_command
from tests.pairwise import some

STUDY = """\
target: {folder}
prompts: [a b c, d e]
generation: {{max_new_tokens: 8, ignore_eos: true}}
repeats: 2
runs:
  - {{drafter: echo, gamma: 2}}
  - {{drafter: echo, gamma: 3}}
"""


@pytest.fixture
def compare(toys, tmp_path, model_folder):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(folder=model_folder))

    def run(*arguments):
        return run_command("compare", str(path), *arguments)

    return run


def finished(folder):
    lines = [json.loads(line) for line in (folder / "repeats.jsonl").read_text().splitlines()]
    return [(line["run"], line["repeat"]) for line in lines[1:]]


def everything(path):
    """Return all repeats of a study in the order in which they are timed."""
    from specdec_core.study import load_study
    from specdec_core.study.run.runner import turns

    (task,) = load_study(path).tasks
    return [(run.name, repeat) for repeat in (1, 2) for run in turns(task, repeat)]


def test_a_table_with_the_baseline_first_and_results(compare, tmp_path):
    output = tmp_path / "out"
    result = compare("--output", output)
    assert result.exit_code == 0, result.output
    names = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert names[names.index("baseline") :][:3] == ["baseline", "echo-2", "echo-3"]
    assert "timing: done in" in result.stderr
    kept = [".lock", "outputs.jsonl", "repeats.jsonl", "report.html", "results.jsonl", "summary.csv"]
    assert sorted(path.name for path in output.iterdir()) == kept
    assert finished(output) == everything(tmp_path / "study.yaml")
    again = compare("--output", output)
    assert again.stdout == result.stdout
    assert "repeats 6  finished before 6" in again.stderr


def test_without_output_nothing_is_written(compare, tmp_path):
    before = set(tmp_path.iterdir())
    result = compare("--set", "repeats=1", "--quiet")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert set(tmp_path.iterdir()) == before


@pytest.fixture
def generate_fails():
    """Let a call of the decoder raise, counted from the first."""
    from specdec_core.decoding.decoder import Decoder

    def arm(patch, call, error):
        real, calls = Decoder.stream, []

        def stream(self, prompts, settings, observers, *args, **kwargs):
            if not observers:  # those of a trace
                calls.append(1)
                if len(calls) == call:
                    raise error
            return real(self, prompts, settings, observers, *args, **kwargs)

        patch.setattr(Decoder, "stream", stream)

    return arm


@pytest.mark.parametrize(("error", "code"), some([(KeyboardInterrupt, 130), (MemoryError, 1)], 1))
def test_what_stops_a_study_keeps_what_is_finished_and_the_next_call_resumes(
    compare, tmp_path, generate_fails, error, code
):
    output = tmp_path / "out"
    call, before = call_of(tmp_path / "study.yaml", "baseline", 2)
    with pytest.MonkeyPatch.context() as patch:
        generate_fails(patch, call + 1, error())
        result = compare("--output", output)
    assert result.exit_code == code
    stopped = f"stopped; {len(before)} of 6 repeats are stored in {output}." in result.stderr
    assert stopped == (error is KeyboardInterrupt)
    assert finished(output) == before
    result = compare("--output", output)
    assert result.exit_code == 0, result.output
    assert f"repeats 6  finished before {len(before)}" in result.stderr
    assert finished(output) == everything(tmp_path / "study.yaml")


def test_ctrl_c_without_output_says_that_nothing_was_kept(compare, generate_fails, monkeypatch):
    generate_fails(monkeypatch, 9, KeyboardInterrupt())
    result = compare()
    assert result.exit_code == 130
    assert "nothing was stored. With --output DIR" in result.stderr


def call_of(path, run, repeat):
    """Return the call of the decoder in which a repeat begins, and the repeats before it."""
    before = everything(path)[: everything(path).index((run, repeat))]
    return 3 + 2 * len(before) + 1, before


def test_a_crash_of_another_run_ends_that_run_only(compare, tmp_path, generate_fails, monkeypatch):
    output = tmp_path / "out"
    call, _ = call_of(tmp_path / "study.yaml", "echo-2", 2)
    generate_fails(monkeypatch, call, MemoryError("boom"))
    result = compare("--output", output)
    assert result.exit_code == 2
    assert "echo-2 failed: MemoryError: boom (test_compare.py:" in result.stderr
    expected = [one for one in everything(tmp_path / "study.yaml") if one != ("echo-2", 2)]
    assert finished(output) == expected
    lines = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok", "error", "ok"]


def test_a_file_that_cannot_be_written_is_named_after_the_table(compare, tmp_path):
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    result = compare("--output", tmp_path / "out", "--set", "repeats=1")
    assert result.exit_code == 2
    assert "Verdict:" in result.stdout
    assert "report.html cannot be written" in result.stderr
    assert (tmp_path / "out" / "summary.csv").is_file()
    assert not list((tmp_path / "out").glob("*.part"))


def test_another_study_in_the_folder_is_refused_unless_fresh(compare, tmp_path):
    output = tmp_path / "out"
    assert compare("--output", output, "--set", "repeats=1").exit_code == 0
    changed = ("--output", output, "--set", "repeats=1", "--set", "generation.seed=5")
    result = compare(*changed)
    assert result.exit_code == 2
    assert "tasks[0].generation.seed: 0 there, 5 now" in result.stderr
    assert compare(*changed, "--fresh").exit_code == 0


def test_a_run_that_cannot_be_loaded_ends_with_2_after_all_others(compare, tmp_path):
    output = tmp_path / "out"
    result = compare("--output", output, "--set", "runs.0.drafter=absent", "--set", "repeats=1")
    assert result.exit_code == 2
    assert "absent-2 failed: drafter 'absent' of specdec-toys 1.0 could not be imported" in result.stderr
    assert "absent-2 (failed)" in result.stdout
    lines = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
    assert [line["error"] is None for line in lines] == [True, False, True]


def test_a_drafter_that_breaks_is_said_and_loses_no_token(compare, tmp_path):
    broken = "runs.0.drafter={name: echo, breaks: true}"
    result = compare("--output", tmp_path / "out", "--set", broken, "--set", "repeats=1")
    assert result.exit_code == 1, result.output
    assert "echo-2 (failed)" in result.stdout
    assert "echo-2 failed: Echo at toy_parts.py:8: RuntimeError: the echo broke (6 times)" in result.stdout
    answer = re.search(r"Verdict: (.*?)echo-2 failed", result.stdout, re.DOTALL)[1]
    assert answer
    assert "echo-2" not in answer
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok", "plugin-failure", "ok"]
    assert lines[1]["tokens"] == lines[0]["tokens"]
    assert {lines[1][key] for key in lines[1] if key.startswith("speedup") and key != "speedup_by_gamma"} == {None}
    assert lines[1]["failures"][0]["where"] == "toy_parts.py:8"
    assert "plugin-failure" in (tmp_path / "out" / "summary.csv").read_text().splitlines()[2]


def test_the_verdict_is_first_and_wide_shows_all_columns(compare, monkeypatch):
    names = ("--set", r'runs.0.name="\e[31mred[/x]"', "--set", "runs.1.name=a-run-with-a-long-name")
    brief = ("--set", "repeats=1", "--quiet")
    monkeypatch.setenv("COLUMNS", "80")
    text = compare(*names, *brief).stdout
    assert text.startswith("Verdict: ")
    assert re.search(r"run +rate +efficiency +tokens/s +speed-up *\n", text)
    table = text[text.index("run ") : text.index("`--wide` also shows: drafter")]
    assert max(map(len, table.splitlines())) <= 80
    for name in ("baseline", r"\x1b[31mred[/x]", "a-run-with-a-long-name"):
        assert any(line.split()[:1] == [name] for line in table.splitlines())
    assert "\x1b" not in text
    assert "±" not in text, "one repeat has no range"
    wide = compare(*names, *brief, "--wide").stdout
    assert "Left out" not in wide
    assert re.search(r"run +drafter +γ +rate +c +efficiency +tokens/s +speed-up +here +3\.8 +γ", wide)
