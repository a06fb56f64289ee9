"""Sentences that state the same quantity state the same value."""

import pytest

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


@pytest.mark.parametrize(
    ("page", "text", "stated"),
    [
        ("a.md", "The built-in target as it ships, which has\n11 million parameters.", "11 million"),
        ("a.md", "| `builtin:target` | a model with 10 million parameters |", "10 million"),
        ("a.md", "`builtin:drafter` has 0.9 million parameters.", "0.9 million"),
        ("random.md", "so that c is 0.7 with the built-in\ntarget", "0.7"),
        ("other.md", "so that c is 0.7 with the built-in\ntarget", None),
        ("a.md", "It inflates the built-in target to 112 million parameters.", None),
    ],
)
def test_a_statement_is_found(page, text, stated):
    found = list(quantities.statements(page, text))
    assert [given for _, given, _ in found] == ([] if stated is None else [stated])
    assert all(value != given for _, given, value in found)
