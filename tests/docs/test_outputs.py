"""Printed outputs on the site: their tables are tables, and each token of a trace has a box."""

import html
import re

import pytest

from tests.docs.pages import ROOT, load, outputs

shown = load(ROOT / "docs" / "hooks.py").outputs.shown

PRINTED = """transformer: c = 0.2

                acceptance  best
 run  drafter         rate     γ  interval
 ──────────────────────────────────────────
 a    x < y          ~0.84     6  0.7 to 0.8
 b    z                  –     4                requested

Verdict: a."""


def page(text):
    """Return the HTML that Markdown makes of an output."""
    lines = "\n".join(
        f'<span id="__span-0-{n}">{html.escape(line, quote=False)}</span>'
        for n, line in enumerate(text.split("\n"))
    )
    return (
        f'<p>Before</p><div class="language-text highlight"><pre><span></span><code>{lines}\n</code></pre></div>'
    )


def cells(text):
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", text)]


def test_a_printed_table_is_a_table_with_the_names_of_its_columns():
    content = shown(page(PRINTED))
    assert cells(content) == [
        ["run", "drafter", "acceptance rate", "best γ", "interval", ""],
        ["a", "x &lt; y", "~0.84", "6", "0.7 to 0.8", ""],
        ["b", "z", "–", "4", "", "requested"],
    ]
    right = [name for style, name in re.findall(r"<th( style[^>]*)?>([^<]*)<", content) if style]
    assert right == ["acceptance rate", "best γ"]
    texts = re.findall(r"<code>(.*?)</code>", content, re.DOTALL)
    assert texts == ["transformer: c = 0.2\n", "Verdict: a.\n"]
    assert content.startswith("<p>Before</p>")


@pytest.mark.parametrize("output", [one for one in outputs() if "─────" in one.text], ids=str)
def test_tables_of_the_pages_lose_no_text(output):
    """Every word of an output stands on the site, in as many cells a row as there are columns."""
    content = shown(page(output.text))
    assert len(re.findall("<table>", content)) == len(re.findall(r"^ ─+$", output.text, re.MULTILINE))
    for table in re.findall(r"<table>.*?</table>", content):
        head, *rows = cells(table)
        assert len(head) > 2
        assert rows
        assert {len(row) for row in rows} == {len(head)}
        assert all(row[0] for row in rows), "the first column names the row"
    words = sorted(html.unescape(re.sub("<[^>]+>", " ", content.partition("</p>")[2])).split())
    assert words == sorted(re.sub("─+", "", output.text).split())


def test_tokens_of_a_trace_are_boxes_that_say_what_became_of_them():
    trace = "   1  2/4  [+ a[0]][+]][-<b>][! c]\n   2  0/4 of 7  [-[][!]]\n\n[*bonus] sampled\n"
    content = shown(page(trace.rstrip("\n")))
    assert re.findall(r'<span class="trace-(\w+)">(.*?)</span>', content) == [
        ("accepted", " a[0]"),
        ("accepted", "]"),
        ("rejected", "&lt;b&gt;"),
        ("recovered", " c"),
        ("rejected", "["),
        ("recovered", "]"),
        ("bonus", "bonus"),
    ]
    assert content.count('<span class="step">') == 2
    plain = html.unescape(re.sub("<[^>]+>", "", content.partition("</p>")[2]))
    assert plain == re.sub(r"\[[-+!*](.*?)\](?=\[|\n| sampled)", r"\1", trace)
    style = (ROOT / "docs" / "assets" / "extra.css").read_text(encoding="utf-8")
    assert all(
        style.count(f".trace-{fate} ") == 2 for fate in ("accepted", "rejected", "recovered", "bonus", "forced")
    )
