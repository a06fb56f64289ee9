"""Index pages list the pages of their sections with their first sentences."""

import re
from types import SimpleNamespace

import pytest

from tests.docs.pages import ROOT, load

sections = load(ROOT / "docs" / "hooks.py").sections


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "<h1>A</h1><p>It runs 1.5 times\nas <code>a.b</code>. More.</p><p>Next.</p>",
            "It runs 1.5 times as <code>a.b</code>.",
        ),
        (
            '<p><img src="a.png"></p><p>See <a href="b.html#c">the <em>kit</em></a>: more</p>',
            "See the <em>kit</em>.",
        ),
        ("<p>A head (Li et al. 2025). More.</p>", "A head (Li et al. 2025)."),
        ("<p>Without an end</p>", "Without an end"),
        ("<h1>Nothing</h1>", ""),
    ],
)
def test_a_summary_is_the_first_sentence(content, sentence):
    assert sections.summary(content) == sentence


def test_an_index_page_lists_pages_and_the_sections_inside():
    def page(title, url):
        return SimpleNamespace(
            title=title, url=url, content=f"<p>Of {title}. More.</p>", is_page=True, is_section=False
        )

    index = page("Guides", "guides/index.html")
    inner = SimpleNamespace(
        title="Inner", children=[page("B & C", "guides/b.html")], is_page=False, is_section=True
    )
    index.parent = SimpleNamespace(children=[index, page("A", "a.html"), inner])
    items = re.findall(r"<li>(?:<a href=\"(.*?)\">(.*?)</a>: (.*?)</li>|(.*?)<ul>)", sections.listing(index))
    assert items == [
        ("../a.html", "A", "Of A.", ""),
        ("", "", "", "Inner"),
        ("b.html", "B &amp; C", "Of B & C.", ""),
    ]
