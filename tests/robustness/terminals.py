"""Names and messages with control characters: none may reach a terminal, the report or a spreadsheet raw."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml
from typer.testing import CliRunner

from specdec_core.cli.main import app
from tests.robustness.attack import BrokenError
from tests.robustness.folders import STUDY, model

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2Jcleared",
    "\x9b31mC1",
    "a\rb",
    "back\x08\x08space",
    "\u202egnp.exe",
    "\u2066isolated",
    "nul\x00",
    "\x7f",
    "=HYPERLINK(1)",
    "@SUM(1)",
    "[bold]markup[/bold]",
    "<script>alert(1)</script>",
    "a\u2028b",
)
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _study(random: Random, text: str, folder: Path) -> tuple[str, list[str], dict[str, Any]]:
    """Return where the text was put, the arguments of the command, and the study."""
    study = {**STUDY, "target": str(model()), "repeats": 1}
    command = random.choice(sorted(COMMANDS))
    arguments = COMMANDS[command](study, text, folder) or ["compare", "study.yaml", "--output", "out"]
    return command, arguments, study


def _run_name(study: dict[str, Any], text: str, _: Path) -> None:
    study["runs"] = [{**study["runs"][0], "name": text}]


def _task_name(study: dict[str, Any], text: str, _: Path) -> None:
    study["tasks"] = [{"name": text}, {"name": "other"}]


def _drafter_name(study: dict[str, Any], text: str, _: Path) -> None:
    study["runs"] = [{"drafter": text, "gamma": 2}]


def _unknown_key(study: dict[str, Any], text: str, _: Path) -> None:
    study[text] = 1


def _target(study: dict[str, Any], text: str, _: Path) -> None:
    study["target"] = f"./{text}"  # a folder, and no name to look up in the hub


def _prompt_key(study: dict[str, Any], text: str, folder: Path) -> None:
    (folder / "prompts.csv").write_text(f"{text},other\n1,2\n", encoding="utf-8", newline="")
    study["prompts"] = {"file": "prompts.csv"}


def _template(study: dict[str, Any], text: str, folder: Path) -> None:
    (folder / "prompts.jsonl").write_text('{"prompt": "a b"}\n')
    study["prompts"] = {"file": "prompts.jsonl", "template": f"{{{{ {text} }}}}"}


def _arpa(study: dict[str, Any], text: str, folder: Path) -> None:
    (folder / "n.arpa").write_text(f"\\data\\\n{text}\n", encoding="utf-8")
    study["runs"] = [{"drafter": {"name": "ngram", "arpa": "n.arpa"}, "gamma": 2}]


def _set(_: dict[str, Any], text: str, __: Path) -> list[str]:
    return ["validate", "study.yaml", "--set", f"{text}=1"]


def _command(_: dict[str, Any], text: str, __: Path) -> list[str]:
    return [text]


def _missing_file(_: dict[str, Any], text: str, __: Path) -> list[str]:
    return ["validate", f"{text}.yaml"]


def _prompt(study: dict[str, Any], text: str, _: Path) -> list[str]:
    return ["generate", text, "--target", str(study["target"]), "--drafter", text, "--max-new-tokens", "2"]


COMMANDS: dict[str, Callable[[dict[str, Any], str, Path], list[str] | None]] = {
    "the name of a run": _run_name,
    "the name of a task": _task_name,
    "the name of a drafter": _drafter_name,
    "an unknown key": _unknown_key,
    "the target": _target,
    "a column of the prompts": _prompt_key,
    "a template": _template,
    "an ARPA file": _arpa,
    "--set": _set,
    "the command": _command,
    "the name of a file": _missing_file,
    "the drafter of `generate`": _prompt,
}


def terminals(random: Random, folder: Path) -> Iterator[str]:
    """A hostile text somewhere on the way to the terminal, the report and the table for spreadsheets."""
    text = random.choice(HOSTILE)
    command, arguments, study = _study(random, text, folder)
    yield f"{command} is {text!r}"
    (folder / "study.yaml").write_text(yaml.safe_dump(study, allow_unicode=False))
    here = [
        one if one.startswith("--") else one.replace("study.yaml", str(folder / "study.yaml")) for one in arguments
    ]
    here = [str(folder / "out") if one == "out" else one for one in here]
    result = CliRunner().invoke(app, here)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise BrokenError(f"{type(error).__name__}: {error}") from error
    for name, said in (("standard output", result.stdout), ("standard error", result.stderr)):
        if found := RAW.search(said.replace("\r\n", "\n")):
            raise BrokenError(f"{found[0]!r} on {name}: {said[max(0, found.start() - 40) : found.end() + 20]!r}")
    _look_at_files(folder / "out")


def _look_at_files(out: Path) -> None:
    if (out / "report.html").exists():
        found = RAW.search((out / "report.html").read_text(encoding="utf-8").replace("<script>alert", "\x00"))
        if found:
            raise BrokenError(f"{found[0]!r} in report.html")
    if (out / "summary.csv").exists():
        with (out / "summary.csv").open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        formulas = [cell for cell in cells if re.match(r"[=@+\t\r]|-(?![\d.]|$)", cell)]
        if formulas:
            raise BrokenError(f"a formula in summary.csv: {formulas[0]!r}")
