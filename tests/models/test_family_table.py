"""The table of families in docs/models.md says what the code does."""

import json

import pytest

from tests.models.family_table import CELLS, DATA, ORDER, Case, outcome

ROWS = {row["family"]: row for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"]}


def test_the_table_has_each_family_and_no_wrong_text():
    assert list(ROWS) == list(ORDER)
    assert all(row[cell].startswith(("works", "refused: ")) for row in ROWS.values() for cell in CELLS)


@pytest.mark.parametrize(
    ("family", "cells"),
    [
        ("mamba2", ["chat", "beams", "generate_with"]),
        pytest.param("jamba", [cell for cell in CELLS if cell != "sampling"], marks=pytest.mark.slow),
        pytest.param("glm5_next", ["target", "batch", "chat"], marks=pytest.mark.slow),
        pytest.param("recurrent_gemma", CELLS, marks=pytest.mark.slow),
    ],
)
def test_cells_are_those_of_the_table(family, cells):
    case = Case(family)
    assert {cell: outcome(case, cell) for cell in cells} == {cell: ROWS[family][cell] for cell in cells}
