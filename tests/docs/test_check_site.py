"""The check of the site in a browser finds planted faults, and none in a correct page."""

import pytest

from tests.docs.pages import ROOT, load

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><style>body {{ margin: 0; color: #222; background: #fff }}</style></head>
<body><article>{}</article></body></html>"""
RIGHT = r"""<p>Text, <code>\(code\)</code>, <span class="arithmatex"><span class="katex">x</span></span></p>
<img src="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>">
<div style="overflow: auto"><div>It fits.</div></div>"""
WRONG = {
    "<script>console.error('so not')</script>": "console: ",
    "<link rel='stylesheet' href='none.css'>": "not loaded: ",
    "<img src='none.png'>": "image not shown: none.png",
    "<script>fetch('https://example.org/b').catch(() => {})</script>": "request: https://example.org/b",
    r"<p>Where \(x\) stands</p>": "formula left as it is",
    "<span class='katex-error'>x</span>": "formula not read",
    "<div style='width: 700px'>wide</div>": "narrow, light: wider than the screen, 700 of 400: div",
    "<div style='overflow: auto'><p style='width: 1500px'>x</p></div>": "wide, dark: scrolls sideways",
    "<p style='color: #aaa; background: #bbb'>faint</p>": 'hardly seen, contrast 1.2: "faint"',
}


@pytest.fixture
def faults(chrome, tmp_path):
    def look(content):
        page = tmp_path / "page.html"
        page.write_text(PAGE.format(content), encoding="utf-8")
        return load(ROOT / ".ci" / "check_site.py").find_faults(chrome, page, tmp_path)

    return look


def test_a_correct_page_passes(faults):
    assert faults(RIGHT) == []


@pytest.mark.parametrize(("content", "message"), WRONG.items(), ids=WRONG.values())
def test_a_fault_is_found(faults, content, message):
    lines = faults(RIGHT + content)
    assert any(message in line for line in lines), lines
