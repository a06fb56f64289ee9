"""Write the two test sets that ship with the package, and the licences of the programs they quote.

The order of a set makes its first prompts a representative selection: the first twenty messages cycle through
programs and lengths, and the first twenty docstrings are from different modules.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from recipes.builtin_t5.programs import Package, Program, members

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recipes.builtin_t5.data import Pair

FIRST = 20
COUNT = 200
ROUND = ("postgresql", "homeassistant", "django", "postgresql", "homeassistant", "wagtail")
SHORTEST_FIRST, LONGEST_FIRST = 6, 25  # words
LONGEST_FIRST_BODY = 120  # words

# Parts of PostgreSQL under another licence.
NOT_SHIPPED = ("pg_dump",)

TITLES = {
    "django": "Django",
    "postgresql": "PostgreSQL",
    "homeassistant": "Home-Assistant",
    "wagtail": "Wagtail",
}


def ordered_messages(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the messages that ship; the first `FIRST` cycle through programs and lengths."""
    allowed = [pair for pair in pairs if not pair.location.startswith(NOT_SHIPPED)]
    allowed = [pair for pair in allowed if not pair.source_text.startswith(("-", "\\"))]  # lists of options
    turns = [ROUND[number % len(ROUND)] for number in range(FIRST)]
    queues: dict[str, list[Pair]] = {}
    for program in ROUND:
        fit = [
            pair
            for pair in allowed
            if pair.program == program and SHORTEST_FIRST <= len(pair.source_text.split()) <= LONGEST_FIRST
        ]
        queues[program] = spread(sorted(fit, key=lambda pair: len(pair.source_text)), turns.count(program))
    first = [queues[program].pop(0) for program in turns if queues[program]]
    chosen = set(first)
    return [*first, *(pair for pair in interleaved(allowed) if pair not in chosen)][:COUNT]


def spread(items: Sequence[Pair], count: int) -> list[Pair]:
    """Return at most `count` items at even distances, alternating between the middle and the ends."""
    if len(items) <= count:
        return list(items)
    indices = [int((number + 0.5) * len(items) / count) for number in range(count)]
    middle_out = sorted(range(count), key=lambda number: (number * 5) % count)
    return [items[indices[number]] for number in middle_out]


def interleaved(pairs: Sequence[Pair]) -> list[Pair]:
    """Interleave the pairs so that each program is spread evenly."""
    sizes: dict[str, int] = defaultdict(int)
    seats: list[tuple[float, int]] = []
    for number, pair in enumerate(pairs):
        sizes[pair.program] += 1
        seats.append((sizes[pair.program], number))
    shares = [(seat / (sizes[pairs[number].program] + 1), number) for seat, number in seats]
    return [pairs[number] for _, number in sorted(shares)]


def ordered_docstrings(pairs: Sequence[Pair], module_of: dict[str, str]) -> list[Pair]:
    """Return the docstrings, with one of each module first; `module_of` maps a location to its module."""
    fit = [
        pair
        for pair in pairs
        if SHORTEST_FIRST <= len(pair.target.split()) <= LONGEST_FIRST
        and len(pair.source_text.split()) <= LONGEST_FIRST_BODY
    ]
    first: dict[str, Pair] = {}
    for pair in fit:
        first.setdefault(module_of[pair.location], pair)
    chosen = list(first.values())[:FIRST]
    return [*chosen, *(pair for pair in pairs if pair not in set(chosen))]


def write_set(path: Path, pairs: Sequence[Pair], prefix: str, sources: dict[str, str]) -> None:
    """Write one test set as JSON Lines; `sources` is the `source` of each program's lines."""
    with path.open("w", encoding="utf-8") as file:
        for number, pair in enumerate(pairs):
            name = pair.location if pair.program == "cpython" else pair.program
            line = {
                "id": f"{number:03d}-{name}",
                "prompt": prefix + pair.source_text,
                "reference": pair.target,
                "source": sources[pair.program].format(location=pair.location),
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def licence_text(program: Program, folder: Path) -> str:
    """Return the licence text in a program's first package.

    For a Debian package, this is the paragraph for `Files: *` in `copyright` and the text of its licence.

    Raises:
        FileNotFoundError: The archive is missing or has no licence text.
    """
    package = program.packages[0]
    archive = package.archive(folder)
    wanted = re.compile(r"[^/]*\.dist-info/licenses/LICENSE(?:\.md|\.rst|\.txt)?|.*/doc/[^/]+/copyright")
    texts = [content.decode("utf-8") for _, content in members(archive, wanted)] if archive else []
    if not texts:
        raise FileNotFoundError(f"{package.name} {package.version} has no licence text")
    return debian_licence(texts[0], package) if package.registry == "debian" else texts[0]


def debian_licence(text: str, package: Package) -> str:
    """Return the copyright lines of `Files: *` and the text of their licence, from a Debian copyright file.

    Raises:
        ValueError: The file has another format.
    """
    head = re.search(r"^Files: \*\nCopyright:(.*?)^License: (\S+)\s*$", text, re.MULTILINE | re.DOTALL)
    body = head and re.search(rf"^License: {re.escape(head[2])}\n((?: .*\n)+)", text, re.MULTILINE)
    if not head or not body:
        raise ValueError(f"the copyright file of {package.name} has no paragraph for all files")
    owners = "\n".join(line.strip() for line in head[1].strip().splitlines())
    terms = "\n".join("" if line.strip() == "." else line[1:] for line in body[1].splitlines())
    return f"{owners}\n\n{terms}\n"
