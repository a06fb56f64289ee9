"""What the pages quote, name and link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ruamel.yaml

from specdec_core.registry import default_registry
from specdec_core.study import load_study
from tests.docs.pages import PAGES, ROOT, blocks, load, name

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


def test_every_plugin_that_ships_is_documented():
    registry = default_registry()
    for record in registry.records():
        if record.distribution != "specdec-core":
            continue
        own = record.kind in ("drafter", "trainer")
        page = ROOT / "docs" / (f"drafters/{record.name}.md" if own else "controllers.md")
        text = page.read_text(encoding="utf-8")
        assert f"`{record.name}`" in text or text.startswith(f"# {record.name}\n")
        assert record.kind != "trainer" or f"specdec train {record.name}" in text
        for key in registry.spec(record.kind, record.name).config.model_fields:
            assert f"`{key}`" in text, f"{name(page)} does not say what {key!r} does"
        assert f"[`{record.name}`]" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_of_keys_are_what_the_models_say():
    keys = load(ROOT / "docs" / "keys.py")
    stale = [name(page) for page in PAGES if keys.renewed(text := page.read_text(encoding="utf-8")) != text]
    assert not stale, "python docs/keys.py renews them"


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
