"""Every command on a page exists, runs, and prints what the page shows."""

import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer

from specdec_core.cli.main import app
from specdec_core.costs.measurement import DrafterMeasurement, Measurement, write_measurement
from specdec_core.costs.step_costs import StepCosts
from specdec_core.interface import SpecdecError
from specdec_drafters.common import texts
from tests.commands import run_command
from tests.docs.pages import (
    ROOT,
    TUTORIAL,
    blocks,
    load,
    name,
    outputs,
    shell_lines,
    shown_commands,
    spans,
    unchanging,
)

COMMANDS = typer.main.get_command(app)
OURS = [words[1:] for words in shown_commands() if Path(words[0]).name == "specdec"]
HELP = [
    line[1:] for example in load(ROOT / "docs/command_reference.py").examples() for line in shell_lines(example)
]
OURS += [words for words in HELP if words not in OURS]
# Examples run in test_python.py; other scripts in docs/ write into the repository.
SCRIPTS = [words[1:] for words in shown_commands() if words[0] == "python" and words[1].startswith("benchmarks/")]

# What is added to a command whose words match, so that it takes little time; the last value of an option counts.
BRIEF = "--inflate-layers 1 --inflate-width 8 --repeats 1"
SMALL_STUDY = "--set prompts.limit=1 --set repeats=1 --set generation.max_new_tokens=4"
SMALL_RECORD = "--set prompts.limit=1 --set generation.max_new_tokens=4 --set target=builtin:target"
ONE_PROMPT = f"{BRIEF} --threads 1 --prompts 1 --new-tokens 8"
SMALLER = {
    # As the record below.
    r"^compare .*--record records/": SMALL_RECORD,
    r"^(compare|replay) .*(examples/replay)": "--set 'runs=[{drafter: prompt-copy, gamma: 2}]'",
    r"^compare examples/paper/": "--set target=builtin:t5-target --set tasks.ende.prompts.limit=1"
    " --set tasks.summaries.prompts.limit=1 --set repeats=1 --set generation.max_new_tokens=4",
    r"^compare examples/quickstart": f"{SMALL_STUDY} --set target=builtin:target"
    " --set 'runs=[{drafter: prompt-copy, gamma: 2}]'",
    r"^compare examples/(self|drafters|trees|json)": f"{SMALL_STUDY} --set target=builtin:target",
    r"^compare examples/beams": f"{SMALL_STUDY} --set target=builtin:t5-target",
    r"^compare ": SMALL_STUDY,
    r"^generate ": "--max-new-tokens 8",
    r"^record .*--import": "",
    r"^record examples/": SMALL_RECORD,
    r"^record .*t5-target": "--prompts '{builtin: translation, limit: 1}' --max-new-tokens 4",
    r"^record .*--timings": "--prompts '{builtin: heldout, limit: 1}' --max-new-tokens 4 --gamma 1",
    r"^record ": "--prompts '{builtin: heldout, limit: 1}' --max-new-tokens 4",
    r"^measure examples/quickstart": "--gamma 2 --timings 1 --set prompts.limit=1 --set target=builtin:target"
    " --set generation.max_new_tokens=8 --set 'runs=[{drafter: prompt-copy, gamma: 2}]'",
    r"^measure ": "--prompts '{builtin: heldout, limit: 1}' --max-new-tokens 8 --gamma 2 --timings 1",
    r"^tune examples/": "--set prompts.limit=2 --set generation.max_new_tokens=4 --set repeats=1 --best 1"
    " --set 'runs=[{drafter: prompt-copy, grid: {gamma: [1, 2]}}]'",
    r"^check .* -- ": "-k full_capacity",  # an option of pytest
    r"^check drafter": "-k full_capacity",
    r"^check gamma": "-k deterministic",
    r"^train ngram .*--ids": "",
    r"^train transformer .*--ids": "--samples 64 --held-out 32 --length 16 --batch-tokens 64 --minutes 0.001",
    r"^check rule": "-k test_answers",
    r"^train ngram ": "--text text.py",
    r"^train (transformer|parallel|heads|eagle3|early-exit)": "--text text.py --samples 128"
    " --held-out 32 --length 32 --batch-tokens 64 --minutes 0.001",
    r"^benchmarks/vs_transformers": "--sizes 10M --configurations packed --tokens 8 --temperatures 0 --threads 1",
    r"^benchmarks/batches": f"{BRIEF} --threads 1 --new-tokens 8 --batch-sizes 2",
    r"^benchmarks/overhead": "--vocab 100 --layers 1 --hidden 8 --contexts 10 --steps 12 --threads 1",
    r"^benchmarks/controllers": f"{ONE_PROMPT} --only prompt-copy --gammas 1 --temperatures 0",
    r"^benchmarks/drafters": f"{ONE_PROMPT} --only random --vocabs 100 --contexts 16 --steps 1",
    r"^benchmarks/which_drafter": "--set 'runs=[{drafter: random, gamma: 2}]'",
    r"^benchmarks/beams": "--prompts 1 --beams 2 --factors 1 --threads 1 --max-new-tokens 4 --repeats 1",
    r"^benchmarks/replay": "--only random --prompts 1 --seeds 1 --threads 1",
    r"^benchmarks/cluster": "--drafters prompt-copy --gammas 1 --repeats 1",
    r"^benchmarks/self_speculation": "--hidden 64 --layers 2 --vocab 64 --exits 1 --repeats 1 --threads 1",
    r"^benchmarks/packed": f"{BRIEF} --threads 1 --context 4 --drafted 0",
    r"^benchmarks/compiled": "--models builtin:drafter --repeats 1 --threads 1 --skip-processes",
}
SLOW = re.compile(
    r"^compare (examples/(paper|code|chat|drafters|beams|json|self|suffix|trees|verification)|docs|study)"
    r"|^measure|^tune|^train (tr|par|h|early|eagle)|^benchmarks|-k lossless"
    r"|^compare (llama|examples/(quickstart|speed))|^check (rule|gamma|drafter:(ngram|prompt-copy -))"
    r"|^record (--hidden|--prompts|examples|--target builtin)"
    r"|^generate .*(name: |--gamma|--temperature 0|--prompts|--chat|--constraint)"
    r"|^generate .*(builtin:stdlib|transformer|chain|arpa|code-editing)"
    r"|^replay .*(transformer|examples|prompt-copy|recent|--machine)|--record"
)
WITHOUT_TIMES = {
    "measure": "--timings 1",
    "compare": "--set timing=false --set target=builtin:target --set 'tasks.temperature-1.prompts=[import os]'"
    " --set runs.transformer-compiled.drafter.compile=false",
}
"""What is added to a command whose counts a page shows, so that it takes less time; the counts stay the same."""
SECONDS = StepCosts(draft=(0.0,) * 9, verify=(1.0,) * 9, overhead=0.0)
STUDY = """\
target: builtin:target
prompts: [import os]
generation: {max_new_tokens: 8}
runs:
  - {drafter: prompt-copy, gamma: 4}
"""


def identity(value: object) -> str:
    return " ".join(value)[:80] if isinstance(value, list) else str(value)


def marked(commands: list[list[str]]) -> list[Any]:
    """Mark as slow what takes long; leave out what differs from another command in sizes or output only."""
    found, seen = [], set()
    for words in commands:
        line = " ".join(words)
        same = re.sub(r"\d+| --(quiet|fresh|output \S+)", "", line)
        if same in seen:
            continue
        marks = [pytest.mark.slow] if SLOW.search(line) else []
        if "--ray" in words or "benchmarks/cluster.py" in words:
            marks = [pytest.mark.cluster]
        found.append(pytest.param(words, marks=marks, id=identity(words)))
        seen.add(same)
    return found


def smaller(words: list[str]) -> list[str]:
    line = " ".join(words)
    if words[0] == "check" and "-k" in words and "lossless" not in words:
        words = words[: words.index("-k")]
    return words + next((shlex.split(more) for pattern, more in SMALLER.items() if re.search(pattern, line)), [])


def command_of(words: list[str]) -> tuple[Any, click.Context, list[str]]:
    """Return the command that words call, its context, and the words that are left for it."""
    command, context, left = COMMANDS, click.Context(COMMANDS, info_name="specdec"), words
    while hasattr(command, "get_command") and left and not left[0].startswith("-"):
        inner = command.get_command(context, left[0])
        assert inner is not None, f"there is no command {left[0]!r}"
        context = click.Context(inner, info_name=left[0], parent=context)
        command, left = inner, left[1:]
    return command, context, left


@pytest.fixture
def folder(tmp_path, monkeypatch, installed, hub):
    """A folder with the files that the pages assume."""
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf-8")
    for block in blocks("yaml", page="docs/cookbook.md"):
        title, study = block.text.split("\n", 1)
        (tmp_path / title.removeprefix("# ")).write_text(hub.replace(study), encoding="utf-8")
    (tmp_path / "text.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    line = '{"prompt": [396, 924], "tokens": [11, 12], "logprobs": [-1.5, -0.5], "finish_reason": "length"}\n'
    (tmp_path / "log.jsonl").write_text(line, encoding="utf-8")
    (tmp_path / "prompt.txt").write_text("def main():", encoding="utf-8")
    measured = DrafterMeasurement(name="prompt-copy", settings={}, acceptance=(), seconds=SECONDS)
    elsewhere = {"target": "builtin:target", "device": "cuda"}
    measurement = Measurement(**elsewhere, sampling={}, versions={}, drafters=(measured,))
    write_measurement(tmp_path / "gpu.json", measurement)
    monkeypatch.setattr(texts, "BUILTIN_STDLIB_BYTES", 100_000)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return tmp_path


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """An n-gram table of the order that the pages train, from little text."""
    folder = tmp_path_factory.mktemp("arpa")
    (folder / "text.py").write_text("import os\nimport sys\n", encoding="utf-8")
    made = folder / "stdlib.3.arpa"
    words = ["train", "ngram", "--text", str(folder / "text.py"), "--order", "3", "--output", str(made)]
    result = run_command(*words)
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A record of one short text, used instead of the built-in one of 96."""
    made = tmp_path_factory.mktemp("records") / "few"
    result = run_command(*smaller(["record", "--output", str(made)]))
    assert result.exit_code == 0, result.output
    return str(made)


PRINTED = [each for each in outputs() if each.page != TUTORIAL and each.language.startswith("specdec ")]
COMPARED = [words[1:] for output in PRINTED for words in shell_lines(output.language)]


@pytest.mark.parametrize("words", marked([words for words in OURS if words not in COMPARED]))
def test_a_command_runs(folder, hub, request, words):
    if any("stdlib.3.arpa" in word for word in words) and words[0] != "train":
        (folder / "stdlib.3.arpa").symlink_to(request.getfixturevalue("arpa"))
    if "--output" in words:  # a file that another command of the pages reads
        output = folder / words[words.index("--output") + 1]
        shutil.rmtree(output) if output.is_dir() else output.unlink(missing_ok=True)
    for word in words:  # a record that another command makes
        if word.startswith("records/") and (words[0] == "replay" or "--record" in words):
            study = words[1] if words[0] == "compare" else f"{Path(word).name}.yaml"
            made = run_command(*smaller(["record", study, "--output", word]))
            assert made.exit_code == 0, made.output
    if words[:2] == ["replay", "builtin:code"] and not words[2].endswith(".yaml"):
        words = ["replay", request.getfixturevalue("few"), *words[2:]]
    words = [hub.replace(word) for word in words]
    result = run_command(*smaller(words), input="def main():" if "-" in words else None)
    assert result.exit_code == 0, result.output
    assert (folder / words[words.index("--output") + 1]).exists() if "--output" in words else result.stdout.strip()


@pytest.mark.parametrize("words", [words for words in OURS if "--help" not in words], ids=identity)
def test_the_options_of_a_command_exist(words):
    command, context, left = command_of(words)
    command.make_context(context.info_name, left, parent=context.parent)  # parses, and runs nothing


def test_commands_in_sentences_exist(installed):
    assert installed  # with the trainer of the tutorial
    for page, text in spans():
        if re.match(r"specdec [a-z]", text):
            # What is left open is in capitals: `specdec train NAME`.
            words = list(itertools.takewhile(lambda word: re.match(r"[a-z]", word), text.split()))
            assert command_of(words[1:]), name(page)
    for wrong in (["plugin"], ["train", "nobody"]):
        with pytest.raises((AssertionError, SpecdecError)):
            command_of(wrong)


@pytest.mark.parametrize("words", marked(SCRIPTS))
def test_a_script_runs(monkeypatch, capsys, tmp_path, words):
    script = ROOT / words[0]
    if script.stem == "vllm_forecast":
        pytest.importorskip("vllm", reason="runs beside vLLM")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", smaller(words))
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert json.loads(printed)["benchmark"]


def test_other_programs_are_known():
    # Installation and the scripts of the repository are run by .ci/run; pytest on a package by test_examples.py.
    programs = {Path(words[0]).name for words in shown_commands()} - {"specdec", "python"}
    assert programs <= {
        *["echo", "grep", "head", "sed", "pip", "python3.11", "pytest", "run", "install", "test", "check", "docs"]
    }


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(
            output,
            marks=pytest.mark.slow if re.match("specdec (compare|replay|measure|record)", output.language) else (),
        )
        for output in PRINTED
    ],
    ids=lambda output: output.language[:80],
)
def test_a_command_prints_what_the_page_shows(output, monkeypatch, tmp_path):
    # Only times may differ. After a built-in model was trained again, run `python docs/generate.py --outputs`.
    monkeypatch.setenv("SPECDEC_PLUGINS", "specdec-core")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    command, _, shell = output.language.partition(" 2>&1 || echo ")
    command, _, filters = command.partition(" | ")
    words = shlex.split(command)[1:]
    result = run_command(*words, *shlex.split(WITHOUT_TIMES.get(words[0], "")), env={"NO_COLOR": "1"})
    printed = f"{result.output}exit code {result.exit_code}" if shell else result.stdout
    assert shell or result.exit_code == 0, result.output
    if filters:
        filtering = ["sh", "-c", filters]
        printed = subprocess.run(filtering, input=printed, capture_output=True, text=True, check=True).stdout
    texts = [unchanging(command, text) for text in (printed, output.text)]
    assert texts[0] == texts[1], f"python docs/generate.py --outputs {shlex.quote(command[:40])}"


@pytest.mark.slow
def test_the_study_of_the_page_on_serving_prints_what_is_shown(folder):
    (study,) = blocks("yaml", page="docs/serving.md")
    Path("study.yaml").write_text(study.text, encoding="utf-8")
    shown = next(block.text for block in blocks("text", page="docs/serving.md") if block.text.startswith("$ "))
    command, *lines = shown.splitlines()
    result = run_command(*command.split()[2:], env={"NO_COLOR": "1"})
    printed = re.sub(r"serve \S+", "serve MODEL", result.output).replace(str(folder), "/srv")
    printed = [line.rstrip() for line in printed.splitlines()]
    assert [line for line in lines if line not in ("…", *printed)] == []
