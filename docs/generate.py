"""Generate the figures, and the parts of the pages that come from the code.

    python docs/generate.py                     renew figures, quoted files and what comes from the code
    python docs/generate.py --check             change nothing; exit with 1 if a page or a figure is out of date
    python docs/generate.py --outputs           run the commands whose output the pages show, and show it anew
    python docs/generate.py --outputs compare   only the commands that contain this text

A generated part stands between `<!-- KIND: WHAT -->` and `<!-- end of KIND -->`, KIND being a key of `WRITERS`. An
output is a ```text block below `<!-- output: COMMAND -->`, or below `<!-- output -->` if the ```sh block before it
has the command; commands run in the root of the repository.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import benchmark_plots
import benchmark_tables
import command_reference
import drafter_tables
import interface_summary
import paper_figures
import paper_tables
import sections
import tables
import timeline
import trace_figure
import walk
from pydantic import BaseModel

from specdec_core.decoding.custom_generate.call import UNSUPPORTED
from specdec_core.interface import DrafterConfig, ModelSettings, TrainerConfig
from specdec_core.registry.cli_fields import cli_fields
from specdec_core.registry.registry import default_registry
from specdec_core.study.config.schema import run_model, study_model

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURES = trace_figure.PICTURE.parent
OUTPUT = re.compile(walk.PRINTED, re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(
    r"(<!-- (?P<kind>include|keys|arguments|generation|commands|paper|"
    r"beams|gains|replays|measured|pages|interface): "
    r"(?P<what>\S+) -->\n).*?"
    r"(<!-- end of (?P=kind) -->)",
    re.DOTALL,
)
_FEW = 6
"""The most names of a setting that a list has; longer lists, as of plugins, are on pages."""
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def keys(what: str) -> str:
    """Return the settings of a pydantic model as a list.

    A trainer's list lacks the options that its bases have, and a drafter's the settings that say how a model is
    loaded: they stand on one page.

    Args:
        what: `study`, `run`, `trainer:NAME` for the options of `specdec train NAME`, or `MODULE:MODEL`.
    """
    module, _, name = what.partition(":")
    if module == "trainer":
        model = default_registry().spec("trainer", name).config
        bases = (base for base in model.__mro__[1:] if issubclass(base, BaseModel))
        return _settings(
            model, {name for base in bases for name in base.model_fields} - model.__annotations__.keys()
        )
    if not name:
        return _settings({"study": study_model, "run": run_model}[what](default_registry()))
    model = getattr(importlib.import_module(module), name)
    loading = ModelSettings.model_fields.keys() - {"model"} if issubclass(model, DrafterConfig) else set()
    return _settings(model, loading)


def _settings(model: type[BaseModel], elsewhere: Collection[str] = ()) -> str:
    """Return the settings of a model, without those that stand elsewhere, as a list."""
    properties = model.model_json_schema()["properties"]
    options: dict[str, str] = {}
    if issubclass(model, TrainerConfig):
        options = {field.name: " / ".join(field.options) for field in cli_fields(model)}
    lines = [""]
    for name, field in model.model_fields.items():
        if name in elsewhere:
            continue
        about = " ".join((field.description or "").split())
        for key, option in options.items():
            about = about.replace(f"`{key}`", f"`{option}`")
        shown = options.get(name, name).replace(" / ", "`, `")
        default = "; required" if field.is_required() else _default(properties[name].get("default"))
        lines.append(f"- `{shown}` ({_value(properties[name])}{default}): {about}")
    return "\n".join(lines) + "\n\n"


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict) or value == []:
        return ""
    return f"; default `{str(value).lower() if isinstance(value, bool) else value}`"


def _value(schema: Mapping[str, Any]) -> str:
    """Return the values that a JSON schema allows, in a few words."""
    parts = [part for key in ("anyOf", "oneOf") for part in schema.get(key, ()) if part.get("type") != "null"]
    if parts:
        return " or ".join(dict.fromkeys(map(_value, parts)))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return "name" if len(values) > _FEW else ", ".join(f"`{value}`" for value in values)
    if not {"type", "$ref"} & schema.keys():
        return "plugin"  # its settings are on its own page
    if len(schema.get("prefixItems", ())) == 2:
        return "pair"
    if schema.get("type") == "array":
        return "list of " + re.sub(r"^(\w+)", r"\1s", _value(schema.get("items") or {}))
    kind = "path" if schema.get("format") == "path" else schema.get("type", "object").replace("object", "mapping")
    return ", ".join([kind, *(f"{sign} {schema[key]:g}" for key, sign in _BOUNDS.items() if key in schema)])


def arguments(_: str) -> str:
    """Return the arguments of transformers' `generate` that `generate_with` does not support."""
    return f"{', '.join(f'`{name}`' for name in UNSUPPORTED)}\n"


_LANGUAGES = {".py": "python"}
"""Language of a fence by the suffix of a file, where it is not the suffix itself."""


def include(what: str) -> str:
    """Return a file, or a section of it, as a fenced block; that of a page as it is.

    Args:
        what: The path from the root of the repository, and after a colon the section, which stands in the file
            between lines with `--8<-- [start:SECTION]` and `--8<-- [end:SECTION]`.
    """
    name, _, section = what.partition(":")
    path = ROOT / name
    lines = path.read_text(encoding="utf-8").splitlines()
    if section:
        begin, end = (_marked(lines, f"--8<-- [{side}:{section}]", what) for side in ("start", "end"))
        lines = lines[begin + 1 : end]
    text = textwrap.dedent("\n".join(line for line in lines if "--8<-- [" not in line)).strip("\n")
    if path.suffix == ".md":
        return f"\n{text}\n\n"
    return f"```{_LANGUAGES.get(path.suffix, path.suffix[1:])}\n{text}\n```\n"


def _marked(lines: Sequence[str], marker: str, what: str) -> int:
    """Return the index of the line with a marker."""
    found = [number for number, line in enumerate(lines) if marker in line]
    if len(found) != 1:
        raise ValueError(f"{what}: the file has {len(found)} lines with {marker}; one is needed")
    return found[0]


_TABLES = {
    "generation": {"families": tables.families, "hybrids": tables.hybrids},
    "paper": paper_tables.TABLES,
    "beams": {"quality": tables.quality, "passes": tables.passes},
    "replays": {"against-live": tables.against_live},
    "measured": benchmark_tables.TABLES,
}
WRITERS: dict[str, Callable[[str], str]] = {
    "include": include,
    "keys": keys,
    "arguments": arguments,
    "commands": command_reference.reference,
    "gains": drafter_tables.gains,
    "interface": interface_summary.summary,
    "pages": sections.listing,
    **{kind: (lambda name, parts=parts: parts[name]()) for kind, parts in _TABLES.items()},
}


def generated(text: str) -> str:
    """Return a page with its generated parts renewed."""
    return _GENERATED.sub(lambda at: f"{at[1]}{WRITERS[at['kind']](at['what'])}{at[4]}", text)


def drawings() -> Mapping[str, Callable[[Path], object]]:
    """Return the function that draws each file, by file name."""
    figures: dict[str, Callable[[Path], object]] = {
        f"figure-{number}.svg": partial(paper_figures.draw_figure, number) for number in paper_figures.FIGURES
    }
    return {
        **figures,
        "figure-5.svg": lambda path: timeline.draw(timeline.read(), path),
        "against.svg": benchmark_plots.draw,
        trace_figure.PICTURE.name: lambda path: path.write_text(trace_figure.svg(), encoding="utf-8"),
    }


def out_of_date() -> Iterator[tuple[Path, str]]:
    """Yield each page whose generated parts differ from the code, and each figure that its script draws otherwise.

    Yields:
        The file, and the text that it should have.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; constraints.txt has the version that drew the figures.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, draw in drawings().items():
            draw(Path(folder) / name)
            drawn = (Path(folder) / name).read_text(encoding="utf-8")
            kept = FIGURES / name
            if not kept.exists() or kept.read_text(encoding="utf-8") != drawn:
                yield kept, drawn
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (renewed := generated(text)) != text:
            yield page, renewed


@cache  # pages that show the same command show the same output
def run(command: str, folder: Path = ROOT) -> str:
    """Return the standard output of a command, tidied.

    Args:
        command: What bash runs.
        folder: Where.

    Raises:
        subprocess.CalledProcessError: The command fails.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    if folder != ROOT:  # the package of the tutorial
        packages = [str(folder), str(folder / walk.INSTALLED), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {
            "PYTHONPATH": os.pathsep.join(packages),
            "SPECDEC_PLUGINS": "specdec-core,specdec-last-word",
        }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return tidy(done.stdout)


def tidy(printed: str) -> str:
    """Return an output without trailing blanks and surrounding empty lines."""
    return "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")


def rerun(page: Path, containing: str) -> None:
    """Run the commands of a page that contain a text, and show their new output."""

    text = page.read_text(encoding="utf-8")
    walked: dict[str, str] = {}
    if page == walk.PAGE and any(containing in walk.command_of(at) for at in OUTPUT.finditer(text)):
        with tempfile.TemporaryDirectory() as folder:  # each command needs those before it
            walked = {command: printed for command, _, printed in walk.walk(Path(folder), run)}

    def renewed(at: re.Match[str]) -> str:
        command = walk.command_of(at)
        if not walked and containing not in command:
            return at[0]
        print(f"{page.relative_to(ROOT)}: {command}", flush=True)
        return f"{at[0][: at.start('text') - at.start()]}{walked[command] if walked else run(command)}\n```"

    page.write_text(OUTPUT.sub(renewed, text), encoding="utf-8")


def main() -> None:
    """Renew or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument(
        "--outputs", nargs="?", const="", metavar="TEXT", help="run commands and show their output"
    )
    options = parser.parse_args()
    if options.outputs is not None:
        for page in PAGES:
            rerun(page, options.outputs)
    found = list(out_of_date())
    for page, text in found:
        print(f"{'out of date' if options.check else 'renewed'}: {page.relative_to(ROOT)}")
        if not options.check:
            page.write_text(text, encoding="utf-8")
    sys.exit(bool(found) and options.check)


if __name__ == "__main__":
    os.environ.setdefault("SPECDEC_PLUGINS", "specdec-core")  # leave out other installed plugins
    main()
