"""Make the training, validation and test pairs of the built-in T5 models.

Translations come from message catalogs of programs under permissive licences (`programs`, `catalogs`, `cleaning`),
summaries from docstrings and documentation of CPython (`docstrings`, `documentation`) and from docstrings of
Python libraries (`libraries`). The splits depend on a hash of the English words of a message, or of the summary or
body of a docstring, not on an order. Test messages come from the same programs as training messages. Messages that
equal a test message except for case, digits, signs and placeholders, or share four fifths of its words, are not
used for training. Test docstrings come from whole modules of CPython that are held out; a library's docstring that
shares four fifths of its words with one is not used.

Archives in `.work/archives` are reused, so that an interrupted run can continue. A program that cannot be
downloaded or read is left out with a warning. Debian's mirrors remove old versions; snapshot.debian.org keeps the
pinned ones.

Run from the repository root: `python -m recipes.builtin_t5.data`
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import random
import re
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from recipes.builtin_pair.corpus import HELD_OUT
from recipes.builtin_t5.catalogs import Message, read
from recipes.builtin_t5.cleaning import ADDRESS, PLACEHOLDER, TAG, fault, prose_key, tidy
from recipes.builtin_t5.docstrings import Summary, normal, summaries
from recipes.builtin_t5.documentation import PACKAGE as DOCUMENTATION
from recipes.builtin_t5.documentation import of_documentation
from recipes.builtin_t5.libraries import LIBRARIES, of_library
from recipes.builtin_t5.programs import PROGRAMS, WORK, Program, digest, fetch, members
from recipes.builtin_t5.shipped import TITLES, licence_text, ordered_docstrings, ordered_messages, write_set

if TYPE_CHECKING:
    from collections.abc import Iterable

PROVENANCE = Path(__file__).parent / "provenance.json"
BUILTIN = Path(__file__).parents[2] / "specdec_models"
KINDS = ("docstrings", "help topics", "documentation")
TRANSLATE = "translate English to German: "
SUMMARIZE = "summarize: "
VALID = {"translate": 600, "summarize": 150}
TEST = {"django": 60, "postgresql": 110, "homeassistant": 90, "wagtail": 40}
TEST_SUMMARIES = 100
MIN_OVERLAP = 0.8  # share of common words, from which two texts count as near-duplicates
SHORTEST_TEST_BODY = 12  # words


@dataclass(frozen=True)
class Pair:
    """One example: source text, target text, and their origin."""

    task: str
    source_text: str
    target: str
    program: str
    location: str
    key: str


def messages_of(program: Program, folder: Path) -> tuple[list[Message], dict[str, str]]:
    """Return a program's messages and the digest of each archive; download missing archives."""
    patterns = program.german + (f"|{program.english}" if program.english else "")
    files: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    for package in program.packages:
        archive = fetch(package, folder)
        digests[archive.name] = digest(archive)
        files.update(members(archive, re.compile(patterns)))
    return read(program, files), digests


def clean(program: Program, messages: list[Message], faults: Counter[str]) -> list[Pair]:
    """Return the usable pairs of a program in the order of its catalogs; count the faults of the others."""
    pairs = []
    for message in messages:
        english = tidy(message.english, program.accelerators)
        german = tidy(message.german, program.accelerators)
        reason = fault(english, german)
        if reason:
            faults[reason] += 1
        else:
            pairs.append(Pair("translate", english, german, program.name, message.location, prose_key(english)))
    return pairs


def distinct(pairs: list[Pair]) -> list[Pair]:
    """Return each pair once, with at most the two most frequent translations of an English text."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    first: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        counts[pair.source_text][pair.target] += 1
        first.setdefault((pair.source_text, pair.target), pair)
    return [first[text, target] for text, found in counts.items() for target, _ in found.most_common(2)]


def rank(key: str) -> str:
    """Return the hash of a key that determines its split."""
    return hashlib.sha256(key.encode()).hexdigest()


def test_worthy(pair: Pair) -> bool:
    """Return whether a message may be in the test set: a sentence of 5 to 30 words without markup."""
    text, words = pair.source_text, len(pair.source_text.split())
    plain = not TAG.search(text + pair.target) and not ADDRESS.search(text) and "`" not in text
    return plain and 5 <= words <= 30 and len(PLACEHOLDER.findall(text)) <= 2 and len(pair.key.split()) >= 4


def close_to(keys: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return the `keys` that share at least `MIN_OVERLAP` of their words, as sets, with one of `others`."""
    of_word: dict[str, list[set[str]]] = defaultdict(list)
    for other in others:
        words = set(other.split())
        for word in words:
            of_word[word].append(words)
    found = set()
    for key in set(keys):
        words = set(key.split())
        # A close text has all but a few of these words, so it has one of the few that the others have most rarely.
        missing = len(words) - math.ceil(MIN_OVERLAP * len(words) - 1e-9)
        rarest = sorted(words, key=lambda word: len(of_word.get(word, ())))[: missing + 1]
        candidates = (other for word in rarest for other in of_word.get(word, ()))
        if any(len(words & other) >= MIN_OVERLAP * len(words | other) for other in candidates):
            found.add(key)
    return found


def split_translations(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Return the splits. A key, and so all near-duplicates of a text, is in one split only.

    Messages that share most of their words with a test message are in none.
    """
    test: dict[str, Pair] = {}
    for program, count in TEST.items():
        mine = {pair.key: pair for pair in reversed(pairs) if pair.program == program and test_worthy(pair)}
        fresh = sorted((key for key in mine if key not in test), key=rank)
        test.update((key, mine[key]) for key in fresh[:count])
    barred = close_to((pair.key for pair in pairs), test)  # the test keys are among them
    rest = [pair for pair in pairs if pair.key not in barred]
    candidates = {pair.key: pair for pair in reversed(rest) if len(pair.key.split()) >= 2}
    valid = {key: candidates[key] for key in sorted(candidates, key=rank)[: VALID["translate"]]}
    return {
        "train": [pair for pair in rest if pair.key not in valid],
        "valid": list(valid.values()),
        "test": list(test.values()),
    }


def split_summaries(train: list[Summary], held_out: list[Summary]) -> dict[str, list[Pair]]:
    """Return the splits. Texts with the same summary are in the same split; `test` comes from held-out modules.

    `valid` and `test` are of CPython. No library's text is close to one of them or of a held-out module.
    """

    def pair(item: Summary) -> Pair:
        return Pair("summarize", item.body, item.summary, item.origin, item.source, normal(item.summary))

    of_cpython = {normal(item.summary) for item in train if item.origin == "cpython"}
    valid_keys = set(sorted(of_cpython, key=rank)[: VALID["summarize"]])
    valid = {normal(item.summary): item for item in reversed(train) if normal(item.summary) in valid_keys}
    valid_bodies = {normal(item.body) for item in valid.values()}
    train = [item for item in train if normal(item.body) not in valid_bodies]
    train = without_close(train, [*valid.values(), *held_out])
    worthy = [item for item in held_out if len(item.body.split()) >= SHORTEST_TEST_BODY]
    distinct_test = {normal(item.summary): item for item in reversed(worthy)}
    test = sorted(distinct_test.values(), key=lambda item: rank(normal(item.body)))[:TEST_SUMMARIES]
    return {
        "train": [pair(item) for item in train if normal(item.summary) not in valid_keys],
        "valid": [pair(item) for item in valid.values()],
        "test": [pair(item) for item in test],
    }


def without_close(items: list[Summary], others: list[Summary]) -> list[Summary]:
    """Return the items of CPython, and those of libraries whose text is not close to one of `others`."""
    bodies = [normal(item.body) for item in items if item.origin != "cpython"]
    barred = close_to(bodies, [normal(other.body) for other in others])
    return [item for item in items if item.origin == "cpython" or normal(item.body) not in barred]


def record(pair: Pair, split: str, fetched: dict[str, dict[str, object]]) -> dict[str, object]:
    """Return one line of pairs.jsonl."""
    program = pair.program
    if program in fetched:
        program += " " + str(next(iter(cast("dict[str, str]", fetched[program]["packages"]).values())))
    return {
        "task": pair.task,
        "prompt": (TRANSLATE if pair.task == "translate" else SUMMARIZE) + pair.source_text,
        "reference": pair.target,
        "source": f"{program}: {pair.location}",
        "split": split,
        "weight": 1,
    }


def collect(folder: Path) -> tuple[list[Pair], dict[str, dict[str, object]], Counter[str]]:
    """Return the distinct pairs of all programs, a record of the downloads, and the count of each fault.

    A program that cannot be downloaded or read is left out with a warning.
    """
    pairs: list[Pair] = []
    fetched: dict[str, dict[str, object]] = {}
    faults: Counter[str] = Counter()
    for program in PROGRAMS:
        try:
            messages, digests = messages_of(program, folder)
        except (OSError, ValueError, KeyError, StopIteration, subprocess.SubprocessError) as error:
            print(f"warning: {program.name} is left out: {error!r}")
            continue
        mine = clean(program, messages, faults)
        pairs.extend(mine)
        fetched[program.name] = {
            "registry": program.packages[0].registry,
            "packages": {package.name: package.version for package in program.packages},
            "licence": program.licence,
            "sha256": digests,
            "messages": len(messages),
        }
        print(f"{program.name}: {len(messages)} messages, {len(mine)} useful", flush=True)
    return distinct(pairs), fetched, faults


def documentation(folder: Path) -> list[Summary]:
    """Return the pairs of CPython's documentation; none, with a warning, if it cannot be downloaded."""
    try:
        return of_documentation(folder)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: CPython's documentation is left out: {error!r}")
        return []


def docstrings_of_libraries(folder: Path) -> tuple[list[Summary], list[dict[str, object]]]:
    """Return the pairs of all libraries, and a record of the downloads.

    A library that cannot be downloaded is left out with a warning.
    """
    found: list[Summary] = []
    fetched: list[dict[str, object]] = []
    for library in LIBRARIES:
        package = library.package
        try:
            mine = of_library(library, folder)
        except OSError as error:
            print(f"warning: {package.name} is left out: {error!r}")
            continue
        found.extend(mine)
        archive = fetch(package, folder)
        fetched.append(
            {
                "name": package.name,
                "registry": package.registry,
                "version": package.version,
                "licence": library.licence,
                "sha256": {archive.name: digest(archive)},
            }
        )
        print(f"{package.name}: {len(mine)} docstrings", flush=True)
    return found, fetched


def provenance(
    fetched: dict[str, dict[str, object]],
    libraries: list[dict[str, object]],
    splits: dict[str, list[Pair]],
    faults: Counter[str],
    folder: Path,
) -> dict[str, object]:
    """Return the content of provenance.json: archives, licences, and the number of pairs of each."""
    taken = {split: Counter(kind_of(pair) for pair in pairs) for split, pairs in splits.items()}
    archive = DOCUMENTATION.archive(folder)
    total = {split: dict(Counter(pair.task for pair in pairs)) for split, pairs in splits.items()}
    return {
        "programs": [
            {"name": name, **entry, "pairs": {split: taken[split][name] for split in taken}}
            for name, entry in fetched.items()
        ],
        "left_out": dict(faults.most_common()),
        "libraries": [
            {**entry, "docstrings": taken["train"][f"docstrings of {entry['name']}"]} for entry in libraries
        ],
        "cpython": {
            "python": platform.python_version(),
            "licence": "PSF-2.0",
            "documentation": {
                "registry": DOCUMENTATION.registry,
                "packages": {DOCUMENTATION.name: DOCUMENTATION.version},
                "sha256": {archive.name: digest(archive)} if archive else {},
            },
            "held_out_modules": list(HELD_OUT),
            "pairs": {kind: {split: taken[split][kind] for split in taken} for kind in KINDS},
        },
        "total": total,
    }


def kind_of(pair: Pair) -> str:
    """Return what provenance.json counts a pair under: its program, library, or kind of CPython's texts."""
    if pair.task == "translate":
        return pair.program
    if pair.program != "cpython":
        return f"docstrings of {pair.program}"
    if pair.location.startswith("documentation: "):
        return "documentation"
    return "help topics" if pair.location.startswith("pydoc_data.topics.") else "docstrings"


def ship(splits: dict[str, list[Pair]], held_out: list[Summary], folder: Path, out: Path) -> None:
    """Write the two test sets and the licence texts into the package."""
    by_name = {program.name: program for program in PROGRAMS}
    sources = {name: f"{name} {by_name[name].version}, {by_name[name].licence}" for name in TEST}
    sources["cpython"] = f"CPython {platform.python_version()}: {{location}}, PSF-2.0"
    messages = [pair for pair in splits["test"] if pair.task == "translate"]
    docstrings = [pair for pair in splits["test"] if pair.task == "summarize"]
    shipped = ordered_messages(messages)
    write_set(out / "translation.jsonl", shipped, TRANSLATE, sources)
    module_of = {item.source: item.module for item in held_out}
    write_set(out / "summarization.jsonl", ordered_docstrings(docstrings, module_of), SUMMARIZE, sources)
    for name in sorted({pair.program for pair in shipped}):
        path = out / f"LICENSE-{TITLES[name]}.txt"
        path.write_text(licence_text(by_name[name], folder).strip() + "\n", encoding="utf-8")


def main() -> None:
    """Write pairs.jsonl and programs.json to --work, provenance.json, and the shipped test sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder for archives and pairs")
    parser.add_argument("--out", type=Path, default=BUILTIN, help="folder for the shipped test sets")
    arguments = parser.parse_args()
    folder = arguments.work / "archives"
    pairs, fetched, faults = collect(folder)
    of_libraries, libraries = docstrings_of_libraries(folder)
    train, held_out = summaries([*documentation(folder), *of_libraries])
    splits = split_translations(pairs)
    for split, more in split_summaries(train, held_out).items():
        splits[split].extend(more)
    rows = [record(pair, split, fetched) for split in splits for pair in splits[split]]
    random.Random(0).shuffle(rows)
    with (arguments.work / "pairs.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (arguments.work / "programs.json").write_text(json.dumps(fetched, indent=2) + "\n", encoding="utf-8")
    facts = provenance(fetched, libraries, splits, faults, folder)
    PROVENANCE.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    ship(splits, held_out, folder, arguments.out)
    print(json.dumps({"total": facts["total"], "left_out": facts["left_out"]}, indent=2))


if __name__ == "__main__":
    main()
