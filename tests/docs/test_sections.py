"""Index pages list pages with their first sentences; that they list all is tested on the built site."""

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
