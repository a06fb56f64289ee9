"""Links, quotes and generated parts of pages agree with the code."""

import importlib
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import ruamel.yaml
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel

from specdec_core import PluginConfig
from specdec_core.registry.cli_fields import cli_fields
from specdec_core.registry.registry import default_registry
from specdec_core.study import load_study, study_model
from specdec_core.study.config.prompt_rows import Row
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from tests.commands import run_command
from tests.docs.pages import PAGES, ROOT, blocks, load, outputs, shown_commands, spans
from tests.docs.pages import name as page_name
from tests.docs.public_names import public_names

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "".join(TEXTS.values())
SHIPPED = [
    record
    for record in default_registry().records()
    if record.distribution == "specdec-core" and record.kind != "models"
]
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<to>[^)\s]+)\)")
_MACHINE = re.compile(r"(?<![\w.~/<:-])/(?:home|root|tmp|work|mnt|Users|opt|usr/local|var)(?:/|\b)[\w./-]*")


def test_generated_parts_are_up_to_date(tmp_path, monkeypatch):
    generate = load(ROOT / "docs" / "generate.py")
    assert not [page_name(page) for page, _ in generate.out_of_date()], "python docs/generate.py renews them"
    changed = tmp_path / "page.md"
    changed.write_text("<!-- arguments: unsupported -->\nold\n<!-- end of arguments -->\n", encoding="utf-8")
    monkeypatch.setattr(generate, "PAGES", [changed])
    monkeypatch.setattr(generate, "drawings", dict)
    ((page, text),) = generate.out_of_date()
    assert (page, "\nold\n" in text) == (changed, False)


def test_a_quoted_section_is_what_stands_between_its_markers(tmp_path, monkeypatch):
    generate = load(ROOT / "docs" / "generate.py")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    lines = ["a = 1", "if a:", "    # --8<-- [start:one]", "    b = 2", "    # --8<-- [start:two]", "    c = 3"]
    lines += ["    # --8<-- [end:two]", "    # --8<-- [end:one]", "d = 4"]
    (tmp_path / "some.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert generate.include("some.py:one") == "```python\nb = 2\nc = 3\n```\n"
    assert generate.include("some.py:two") == "```python\nc = 3\n```\n"
    assert generate.include("some.py").splitlines()[1:-1] == ["a = 1", "if a:", "    b = 2", "    c = 3", "d = 4"]
    with pytest.raises(ValueError, match=r"some.py:three: the file has 0 lines"):
        generate.include("some.py:three")


def test_an_output_is_that_of_its_marker_or_of_the_block_above(tmp_path, monkeypatch):
    generate = load(ROOT / "docs" / "generate.py")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    above = "```sh\necho one \\\n    two\n```\n\n<!-- output -->\n```text\n```\n"
    given = "\n```sh\necho three\n```\n\n<!-- output: echo four -->\n```text\nold\n```\n"
    page = tmp_path / "page.md"
    page.write_text(above + given, encoding="utf-8")
    generate.rerun(page, "echo")
    shown = [(one.language, one.text) for one in outputs(page)]
    assert shown == [("echo one two", "one two"), ("echo four", "four")]


def test_python_versions_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    *first, last = versions
    said = f"Python {', '.join(first)} or {last}"
    for page in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        assert said in (ROOT / page).read_text(encoding="utf-8"), page
    allowed = SpecifierSet(project["requires-python"])
    assert [f"3.{n}" for n in range(8, 30) if f"3.{n}.1" in allowed] == versions
    workflow = ruamel.yaml.YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python-version"] == versions


def test_every_extra_for_users_is_in_the_table():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (
        (ROOT / "docs/install.md").read_text(encoding="utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    )
    of_developers = {"test", "browser", "extras", "recipes"}
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([\w]+)`", line.split("|")[1] if "|" in line else "")
    }
    assert named == project["optional-dependencies"].keys() - of_developers


def models_of(annotation: Any, found: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Collect the models in an annotation and in their fields; plugins have pages of their own."""
    parts = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found[annotation] = None
        parts = tuple(field.annotation for field in annotation.model_fields.values())
    for part in parts:
        models_of(part, found)
    return found


def test_every_key_of_a_study_is_in_a_list():
    assert "<!-- keys: study -->" in ALL
    assert "<!-- keys: run -->" in ALL
    models = [
        model for model in models_of(study_model(default_registry()), {}) if not issubclass(model, PluginConfig)
    ]
    named = {
        f"{model.__module__}:{model.__name__}" for model in models if model.__module__.startswith("specdec_core.")
    }
    lists = set(re.findall(r"<!-- keys: (\S+:\S+) -->", ALL))
    # The models of a study and of a run are made with the plugins that are installed.
    assert {name for name in named - lists if not re.search(r":(Study|Run)$", name)} == set()


@pytest.mark.parametrize("record", SHIPPED, ids=lambda record: f"{record.kind}-{record.name}")
def test_every_plugin_has_a_page_with_its_settings(record):
    config = default_registry().spec(record.kind, record.name).config
    folder = {"gamma": "controllers", "lenience": "controllers", "rule": "rules"}.get(record.kind, "drafters")
    text = TEXTS[ROOT / "docs" / folder / f"{record.name}.md"]
    table = f"trainer:{record.name}" if record.kind == "trainer" else f"{config.__module__}:{config.__name__}"
    assert f"<!-- keys: {table} -->" in text or not config.model_fields
    assert f"[`{record.name}`](docs/{folder}/{record.name}.md)" in TEXTS[ROOT / "README.md"]
    if folder == "controllers":
        assert f"[`{record.name}`](controllers/{record.name}.md)" in TEXTS[ROOT / "docs" / "controllers.md"]


@pytest.mark.parametrize("name", [record.name for record in SHIPPED if record.kind == "trainer"])
def test_every_option_of_a_trainer_is_on_its_page_or_on_those_that_it_links_to(name):
    page = ROOT / "docs" / "drafters" / f"{name}.md"
    training = TEXTS[page].partition("## Training")[2]
    linked = [
        (page.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(training) if ".md" in link
    ]
    texts = [training, *(TEXTS[one] for one in linked if one in TEXTS)]
    listed = set(re.findall(r"^- `(--[\w-]+)`", "".join(texts), re.MULTILINE))
    options = {field.option for field in cli_fields(default_registry().spec("trainer", name).config)}
    assert options - listed - {"--target", "--output", "--overwrite"} == set()


def test_every_public_name_is_in_a_module_of_the_reference():
    # That the reference shows it is tested on the built site, in test_site.py.
    modules = [
        module
        for page in (ROOT / "docs" / "api").glob("*.md")
        for module in re.findall(r"^::: (\S+)$", TEXTS[page], re.MULTILINE)
    ]
    assert sorted(modules) == sorted(set(modules)), "a module is documented in one place"
    settings = {default_registry().spec(record.kind, record.name).config.__module__ for record in SHIPPED}
    assert {module for module in settings if not module.startswith("specdec_core.")} <= set(modules)
    missing = []
    for package, name in public_names():
        home = getattr(getattr(importlib.import_module(package), name), "__module__", None)
        defined = home in modules or any(name in vars(importlib.import_module(module)) for module in modules)
        missing += [] if defined else [f"{package}.{name}"]
    assert not missing


def test_links_of_pages_outside_the_site_lead_somewhere():
    # Links within docs/ are checked when the site is built.
    for page in [*ROOT.glob("*.md"), *ROOT.glob("models/*/*/README.md"), *ROOT.glob("tests/*/README.md")]:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            to, _, anchor = link.partition("#")
            if not re.match(r"[a-z]+:", to):
                target = (page.parent / to).resolve() if to else page
                assert target.exists(), f"{page_name(page)} links to {link}"
                headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                assert not anchor or anchor in {
                    re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings
                }, f"{page_name(page)} links to {link}"


def test_files_that_pages_name_exist():
    packages = "tests|specdec_core|examples|benchmarks|scripts"
    folders = {name: f"specdec_{name}" for name in ("drafters", "plugins", "models")} | {".": f"(?:{packages})"}
    for folder, prefix in folders.items():
        for page, text in spans():
            if re.fullmatch(rf"{prefix}/[\w/.-]+", text) and "NAME" not in text:
                assert (ROOT / folder / text).exists(), f"{page_name(page)} names {text}"


def test_no_page_names_a_path_on_one_machine():
    for page, text in TEXTS.items():
        assert not _MACHINE.search(text), page_name(page)
        assert "http://localhost" not in text, page_name(page)


@pytest.mark.parametrize("block", [block for block in blocks("yaml") if block.source is None], ids=str)
def test_examples_of_studies_are_valid(block, tmp_path, monkeypatch):
    if "kenlm:" in block.text:
        pytest.importorskip("kenlm", exc_type=ImportError)
    (tmp_path / "questions.csv").write_text("question,answer,key\nWhy?,Because.,k\n", encoding="utf-8")
    (tmp_path / "question.jsonl").write_text('{"question_id": 1, "turns": ["Why?"]}\n', encoding="utf-8")
    shutil.copytree(ROOT / "examples/prompts/speed-bench", tmp_path / "data/speed")
    hub = [Row("hub: row 1", 1, {"question": "Why?", "answer": "Because."})]
    monkeypatch.setattr("specdec_core.study.config.prompts.dataset_rows", lambda *_: hub)
    data = ruamel.yaml.YAML(typ="safe").load(block.text)
    whole = {"target": "builtin:target", "prompts": ["a"], "runs": [{"drafter": "random", "gamma": 1}], **data}
    path = tmp_path / "study.yaml"
    with path.open("w", encoding="utf-8") as file:
        ruamel.yaml.YAML().dump(whole, file)
    load_study(path)


STUDIES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_that_ship_are_valid(path):
    load_study(path)


ELSEWHERE = {"engines", "hierarchy", "translated", "replay"} | {
    Path(words[2]).stem
    for words in shown_commands()
    if words[1:2] in (["compare"], ["tune"]) and words[2].startswith("examples/")
}
"""Studies that need a server, or models that are trained before; one with hundreds of runs, for replays; and those
that test_commands.py runs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in STUDIES if path.stem not in ELSEWHERE], ids=lambda path: path.stem
)
def test_studies_that_ship_run(path, tmp_path):
    sizes = ["prompts.limit=1", "generation.max_new_tokens=4", "repeats=1"]
    if path.stem == "self":  # `inflated` makes its target larger, too
        sizes += ["target=builtin:target"]
    words = ["compare", str(path), "--quiet", "--output", str(tmp_path)]
    result = run_command(*words, *(word for size in sizes for word in ("--set", size)))
    assert result.exit_code == 0, result.output


def test_prompt_files_of_the_page_are_read(tmp_path):
    path = tmp_path / "prompts.jsonl"
    for block in blocks("json", page="docs/prompts.md"):
        path.write_text(block.text, encoding="utf-8")
        assert len(read_prompts(PromptsConfig(file=path), Path())) == len(block.text.splitlines())
