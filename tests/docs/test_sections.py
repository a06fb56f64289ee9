"""Every page has a written summary; that index pages list all pages is tested on the built site."""

import pytest

from tests.docs.pages import ROOT, load

hooks = load(ROOT / "docs" / "hooks.py")
sections = hooks.sections


def test_each_page_has_a_summary_and_each_summary_a_page():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages == sections.summaries().keys()
    assert pages >= sections.searches().keys()
    assert all(text.endswith(".") and "\n" not in text for text in sections.summaries().values())


def test_links_to_files_lead_to_what_the_site_has():
    text = "[a](../examples/tune.yaml) [`tune`](../specdec_core/offline/tune.py) [c](faq.md) [d](examples/harness)"
    shown = "a [`tune`](api/replay.md#specdec_core.offline.tune.tune) [c](faq.md) d"
    assert hooks.for_site(text, "tune.md", "") == shown
    linked = hooks.for_site("[a](../../examples/beams.yaml)", "drafters/random.md", "https://host/specdec")
    assert linked == "[a](https://host/specdec/blob/main/examples/beams.yaml)"


def test_what_cannot_be_listed_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match=r"none\.md has no summary; write one line"):
        sections.summary("none.md")
    with pytest.raises(ValueError, match=r"start\.md begins no section"):
        sections.listing("start.md")
