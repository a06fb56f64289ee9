"""How numbers are written, and how tables fit a terminal."""

import io
import re

import pytest
from rich.console import Console

from specdec_core.study.report.formats import number, printable, rate, share, with_spread
from specdec_core.study.report.layout import Column, ReportTable, Row


@pytest.mark.parametrize(
    ("written", "text"),
    [
        *((number(value, 2, "×"), text) for value, text in ((None, "–"), (0, "0×"), (0.0004, "<0.01×"))),
        *((rate(value), text) for value, text in ((None, "–"), (0.994, "0.99"), (0.9996, ">0.99"), (1, "1.00"))),
        *((share(value), text) for value, text in ((0, "0%"), (1e-4, "<1%"), (0.9999, ">99%"), (1, "100%"))),
    ],
)
def test_only_nothing_and_all_are_written_as_0_and_1(written, text):
    assert written == text


def test_one_repeat_has_no_range():
    assert with_spread(2.0, 1.9, 2.2, 2, "×", repeats=3) == "2.00× ±0.15"
    assert with_spread(2.0, 1.9999, 2.0, 2, "×", repeats=3) == "2.00× ±<0.01"
    assert with_spread(2.0, 2.0, 2.0, 2, "×", repeats=1) == "2.00×"
    assert with_spread(None, None, None, 2, repeats=3) == "–"


def test_what_an_encoding_lacks_is_spelled_out():
    assert printable("best γ 1.5× ±0.1 中", "ascii") == r"best gamma 1.5x +-0.1 \u4e2d"
    assert printable("best γ 1.5×", "latin-1") == "best gamma 1.5x"
    assert printable("best γ 1.5× 中", "utf-8") == "best γ 1.5× 中"


RUNS = ReportTable(
    (
        Column("run", numeric=False),
        Column("acceptance\nrate", spare=1),
        Column("c", spare=2, note="c: the cost."),
        Column("speed-up"),
    ),
    (Row(("a-rather-long-name", "0.50", "–", "1.50×")), Row(("b", "0.40", "0.100", "<0.01×"))),
    notes=("Two runs.",),
    title="a task",
)


def shown(table, width, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width)
    console.print(table, crop=False)
    file.seek(0)
    return file.read()


def test_a_wide_terminal_has_all_columns():
    text = shown(RUNS, 80)
    assert text.splitlines()[0] == "a task"
    assert "a-rather-long-name" in text
    assert re.search(r"name +0\.50 +– +1\.50×", text)
    for note in ("Two runs.", "c: the cost.", "–: not measured."):
        assert note in text
    assert "--wide" not in text


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(49, []), (46, []), (40, ["c"]), (30, ["acceptance rate", "c"]), (10, ["acceptance rate", "c"])],
)
def test_the_least_important_columns_are_left_out_first(width, left_out):
    text = shown(RUNS, width)
    assert "a-rather-long-name" in text
    assert "1.50×" in text
    assert "…" not in text
    told = " ".join(text.split())
    assert (f"Left out to fit {width} columns: {', '.join(left_out)}. `--wide` shows all." in told) == bool(
        left_out
    )
    assert ("0.40" in text) == ("acceptance rate" not in left_out)
    # Notes are about columns that are there.
    assert ("c: the cost." in text) == ("not measured" in text) == ("c" not in left_out)
    if width >= len("a-rather-long-name") + 12:
        assert max(map(len, text.splitlines())) <= width


SETTINGS = ReportTable(
    (Column("run", numeric=False), Column("drafter", numeric=False), Column("gamma", numeric=False)),
    (Row(("one", "transformer(model=/a/path, dtype=auto)", "fixed(gamma=2)")), Row(("two", "none", ""))),
)


def test_a_table_without_spare_columns_has_a_line_per_value():
    assert shown(SETTINGS, 38).splitlines() == [
        "one",
        "  drafter  transformer(model=/a/path,",
        "           dtype=auto)",
        "  gamma    fixed(gamma=2)",
        "two",
        "  drafter  none",
        "",
    ]
