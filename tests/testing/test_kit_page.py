"""The statements of the kit's page are true."""

from __future__ import annotations

import re
from dataclasses import replace

from specdec_core.interface import DraftSession
from specdec_core.testing import DrafterKit, DrafterSubject, checks_for
from specdec_core.testing.registration import KINDS
from tests.conformance import failures
from tests.docs.pages import ROOT
from tests.toys import TableDrafter

pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs" / "kit.md").read_text(encoding="utf-8")
WAYS = ROOT / "docs" / "examples" / "kit_ways.py"


class Withholding(TableDrafter):
    """Discards drafts that begin with an end of sequence."""

    def open(self, session):
        return _WithholdingSession(super().open(session))


class _WithholdingSession(DraftSession):
    def __init__(self, inner):
        self.inner = inner

    def propose(self, request):
        made = self.inner.propose(request)
        ends = [length > 0 and row[0] == 1 for length, row in zip(made.lengths, made.tokens.tolist(), strict=True)]
        return replace(made, lengths=tuple(0 if end else n for n, end in zip(made.lengths, ends, strict=True)))


def test_the_page_lists_every_check_once():
    parts = {
        kind: PAGE.split(f"<!-- checks: {kind} -->")[1].split("<!-- end of checks -->")[0]
        for kind in ("shared", *KINDS)
    }
    for kind in KINDS:
        for one in checks_for(kind):
            name, summary = re.escape(f"`{one.name}`"), re.escape(one.summary)
            line = re.compile(rf"^- {name}(?: for ([a-z, ]+))?( \(optional.*\))?: {summary}$", re.MULTILINE)
            own, shared = (
                [found for found in line.finditer(parts[part]) if kind in (found[1] or kind).split(", ")]
                for part in (kind, "shared")
            )
            (found,) = own + shared
            which = re.match(r" \(optional(?: for (.+?))?, ", found[2] or "")
            optional = which is not None and (which[1] is None or kind in which[1].split(", "))
            assert one.required is not optional
            assert one.required or found[2].endswith(f", {one.purpose})")


def test_the_failure_on_the_page_is_a_real_one():
    (failure,) = failures(DrafterSubject(lambda target: Withholding(6)), "lossless")

    def without_numbers(words):
        return re.sub(r"\d+(\.\d+)?(e-\d+)?", "#", words)

    assert without_numbers(failure.message) in without_numbers(PAGE)


def test_the_page_explains_every_attribute_of_a_kit():
    for base in DrafterKit.__mro__[:2]:
        for name in base.__annotations__:
            assert re.search(rf"^- `{name}`( \(default .+?\))?: ", PAGE, re.MULTILINE) or name == "kind"


def test_the_examples_on_the_page_work(pytester):
    checks = "budget-respected or empty-context or drafts-tokens"
    done = pytester.runpytest_inprocess(str(WAYS), "-p", "no:cacheprovider", "-k", checks, "-rA")
    outcomes = done.parseoutcomes()
    assert (outcomes["passed"], outcomes["xfailed"]) == (4, 2)
    assert re.search(r"XFAIL .*::test_echo\[empty-context\] - it looks at the last token", done.stdout.str())
    assert re.search(
        r"XFAIL .*::TestTable::test_conforms\[empty-context\] - optional, for use outside ", done.stdout.str()
    )
