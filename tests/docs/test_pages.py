"""What the pages quote, name and link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ruamel.yaml

from specdec_core.registry import default_registry
from specdec_core.study import load_study
from tests.docs.pages import PAGES, ROOT, blocks, load, name, spans

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<to>[^)\s]+)\)")
_MACHINE = re.compile(r"(?<![\w.~/<:-])/(?:home|root|tmp|work|mnt|Users|opt|usr/local|var)(?:/|\b)[\w./-]*")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        to, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", to):
            continue
        there = (page.parent / to).resolve() if to else page
        assert there.exists(), f"{name(page)} links to {link}"
        # Anchors of the reference are names that mkdocs makes and its strict build checks.
        if anchor and "api" not in there.parts:
            assert anchor in anchors(there), f"{name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_names_a_place_on_one_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not _MACHINE.search(text)
    assert "http://localhost" not in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_displayed_formulas_stand_by_themselves(page):
    # Within a paragraph or a list, mkdocs leaves $$ as it is.
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")
    assert all(
        part.strip().startswith("$$") and part.strip().endswith("$$") for part in paragraphs if "$$" in part
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_page_is_in_the_navigation(page):
    if page.parent != ROOT:
        assert page.relative_to(ROOT / "docs").as_posix() in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


OWN = [record for record in default_registry().records() if record.distribution == "specdec-core"]


@pytest.mark.parametrize("record", OWN, ids=lambda record: f"{record.kind} {record.name}")
def test_every_plugin_that_ships_is_documented(record):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if record.kind in ("gamma", "lenience"):
        config = default_registry().spec(record.kind, record.name).config
        text = (ROOT / "docs" / "controllers" / f"{record.name}.md").read_text(encoding="utf-8")
        # Its table of settings is made, and held against the models below.
        assert f"<!-- keys: {config.__module__}:{config.__name__} -->" in text
        assert f"(../controllers.md#{record.kind})" in text
        overview = (ROOT / "docs" / "controllers.md").read_text(encoding="utf-8")
        assert f"[`{record.name}`](controllers/{record.name}.md)" in overview
        assert f"[`{record.name}`](docs/controllers/{record.name}.md)" in readme
        return
    page = ROOT / "docs" / "drafters" / f"{record.name}.md"
    text = page.read_text(encoding="utf-8")
    assert f"`{record.name}`" in text or text.startswith(f"# {record.name}\n")
    assert f"[`{record.name}`]" in readme
    if record.kind == "trainer":
        # Its table of options is made, and held against the models below.
        assert f"specdec train {record.name}" in text
        assert f"<!-- keys: trainer:{record.name} -->" in text
        return
    config = default_registry().spec(record.kind, record.name).config
    if config.model_fields:
        assert f"<!-- keys: {config.__module__}:{config.__name__} -->" in text


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "drafters"], ids=name)
def test_a_drafters_page_says_what_one_has_to_know(page):
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^\*\*When to choose it\.\*\*", text, re.MULTILINE)
    assert re.search(r"^\| (key|option) \|", text, re.MULTILINE)
    assert re.search(r"^\*\*Its q\*\* is ", text, re.MULTILINE)
    assert "\n## What it costs\n" in text
    assert text.rsplit("\n\n", 1)[1].startswith("Source: `specdec_drafters/")
    for source in re.findall(r"`(specdec_drafters/[\w/.]+)`", text):
        assert (ROOT / "drafters" / source).exists(), f"{name(page)} names {source}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "controllers"], ids=name)
def test_a_controllers_page_says_what_one_has_to_know(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    assert page.stem in {record.name for record in OWN if record.kind in ("gamma", "lenience")}
    # How it is written in a study, by its name or by what is short for it.
    kind = "gamma" if "(../controllers.md#gamma)" in text else "lenience"
    examples = "".join(block.text for block in blocks("yaml") if block.page == page)
    assert re.search(rf"{kind}: ({page.stem}|{{name: {page.stem}\b)", examples), examples
    last = text.rsplit("\n\n", 1)[1]
    assert last.startswith("Source: `specdec_plugins/")
    for source in re.findall(r"`(specdec_plugins/[\w/.]+)`", last):
        assert (ROOT / "plugins" / source).exists(), f"{name(page)} names {source}"


def test_tests_that_pages_name_are_there():
    named = {(page, text) for page, text in spans() if re.match(r"tests/[\w/.]+$", text)}
    assert len([page for page, _ in named if page.name == "correctness.md"]) > 15
    for page, text in named:
        assert (ROOT / text).exists(), f"{name(page)} names {text}"


def test_quoted_files_and_parts_of_files_are_there():
    quoted = [
        (page, found)
        for page in PAGES
        for found in re.findall(r'^--8<-- "([^"]+)"$', page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert quoted
    for page, (path, _, part) in ((page, found.partition(":")) for page, found in quoted):
        text = (ROOT / path).read_text(encoding="utf-8")
        if part:
            marks = [f"# --8<-- [{end}:{part}]" for end in ("start", "end")]
            assert [text.count(mark) for mark in marks] == [1, 1], f"{name(page)} quotes {part!r} of {path}"


def test_what_is_written_from_the_code_is_what_the_code_says():
    renew = load(ROOT / "docs" / "renew.py")
    places = "".join(page.read_text(encoding="utf-8") for writer in renew.WRITERS for page in writer.PAGES)
    assert all(
        f"<!-- {place}" in places for place in ("keys: study", "commands -->", "checks: gamma", "paper: table2")
    )
    assert not [name(page) for page, _ in renew.stale()], "python docs/renew.py renews them"


def test_a_page_that_is_not_what_the_code_says_is_found(tmp_path, monkeypatch, capsys):
    renew = load(ROOT / "docs" / "renew.py")
    (page,) = renew.checks.PAGES
    text = page.read_text(encoding="utf-8")
    changed = tmp_path / page.name
    changed.write_text(text.replace("`zero-budget`", "`no-budget`"), encoding="utf-8")
    monkeypatch.setattr(renew, "WRITERS", (renew.checks,))
    monkeypatch.setattr(renew.checks, "PAGES", [changed])
    for options, said, code in (
        (["--check"], "stale: kit.md\n", 1),
        ([], "renewed: kit.md\n", 0),
        (["--check"], "", 0),
    ):
        monkeypatch.setattr("sys.argv", ["renew.py", *options])
        with pytest.raises(SystemExit) as ended:
            renew.main()
        assert (capsys.readouterr().out, int(ended.value.code)) == (said, code)
    assert changed.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_examples_of_studies_are_valid(block, tmp_path):
    if "--8<--" in block.text:
        return
    data = ruamel.yaml.YAML(typ="safe").load(block.text)
    whole = {"target": "builtin:target", "prompts": ["a"], "runs": [{"drafter": "random", "gamma": 1}], **data}
    # What stands on the reader's disk is not looked for: models are not loaded, and there are no ARPA files here.
    path = tmp_path / "study.yaml"
    with path.open("w", encoding="utf-8") as file:
        ruamel.yaml.YAML().dump(whole, file)
    load_study(path)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(path):
    load_study(path)
