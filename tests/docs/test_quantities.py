"""Sentences that state the same quantity state the same value."""

from tests.docs.pages import PAGES, ROOT, load
from tests.docs.pages import name as page_name

quantities = load(ROOT / "docs" / "quantities.py")


def test_pages_state_the_values_of_the_data_files():
    stated = set()
    for page in PAGES:
        for name, given, value in quantities.statements(page.name, page.read_text(encoding="utf-8")):
            assert given == value, f"{page_name(page)} states {given} as {name}; docs/quantities.py has {value}"
            stated.add(name)
    assert {"parameters of builtin:target", "parameters of builtin:drafter"} <= stated
