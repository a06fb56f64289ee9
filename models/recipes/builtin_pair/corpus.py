"""Collect the training text: the Python sources and help topics that ship with CPython.

Whole modules are held out for prompts and measurements. The text depends on the Python version that runs this;
`provenance.json` records it.

Run from the repository root: `python -m recipes.builtin_pair.corpus`
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sysconfig
import tokenize
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path(__file__).parent / ".work"
PROVENANCE = Path(__file__).parent / "provenance.json"

HELD_OUT = (
    "asyncio/locks.py",
    "calendar.py",
    "cmd.py",
    "concurrent/futures/thread.py",
    "configparser.py",
    "csv.py",
    "email/charset.py",
    "fileinput.py",
    "fractions.py",
    "graphlib.py",
    "heapq.py",
    "http/cookies.py",
    "json/decoder.py",
    "json/encoder.py",
    "logging/config.py",
    "multiprocessing/queues.py",
    "shlex.py",
    "statistics.py",
    "textwrap.py",
    "unittest/suite.py",
    "urllib/robotparser.py",
    "wave.py",
    "wsgiref/headers.py",
    "xml/sax/saxutils.py",
    "zipapp.py",
)

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "__pycache__", "_bundled"}
# Generated tables. The help topics are read as prose below.
SKIPPED_FILES = {"html/entities.py", "pydoc_data/topics.py", "msilib/schema.py"}
GENERATED_MARKS = ("gencodec.py", "decoding_table", "# system configuration generated")


@dataclass(frozen=True)
class Document:
    """A training or held-out text and its source."""

    source: str
    text: str


def stdlib_modules(root: Path) -> Iterator[Document]:
    """Yield the modules below `root` in sorted order, without tests and generated tables."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        name = relative.as_posix()
        parts = relative.parts[:-1]
        if SKIPPED_FOLDERS.intersection(parts) or name in SKIPPED_FILES:
            continue
        if any(part.startswith("config-") for part in parts):
            continue
        with tokenize.open(path) as file:
            text = file.read()
        if text.strip() and not any(mark in text[:4000] for mark in GENERATED_MARKS):
            yield Document(name, text)


def help_topics() -> Iterator[Document]:
    """Yield the language reference as shown by `help()`, each paragraph once.

    The topics quote each other at length, so repeated paragraphs are left out.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for name, text in sorted(topics.items()):
        fresh = [part for part in text.split("\n\n") if part not in seen]
        seen.update(fresh)
        if fresh:
            yield Document(f"pydoc_data/topics.py:{name}", "\n\n".join(fresh).strip() + "\n")


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Return the training and the held-out documents.

    Raises:
        ValueError: A held-out module is not in this standard library.
    """
    held_out = [document for document in documents if document.source in HELD_OUT]
    missing = set(HELD_OUT) - {document.source for document in held_out}
    if missing:
        raise ValueError(f"held-out modules not in this standard library: {sorted(missing)}")
    return [document for document in documents if document.source not in HELD_OUT], held_out


def describe(documents: list[Document]) -> dict[str, object]:
    """Return count, size and a digest of names and contents."""
    digest = hashlib.sha256()
    for document in documents:
        content = hashlib.sha256(document.text.encode()).hexdigest()
        digest.update(f"{content}  {document.source}\n".encode())
    return {
        "documents": len(documents),
        "bytes": sum(len(document.text.encode()) for document in documents),
        "sha256_of_list": digest.hexdigest(),
    }


def read_documents(path: Path) -> list[Document]:
    """Read documents from a JSON Lines file."""
    with path.open(encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]


def write_documents(path: Path, documents: list[Document]) -> None:
    """Write documents to a JSON Lines file."""
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(asdict(document)) + "\n")


def main() -> None:
    """Write train.jsonl and held_out.jsonl to --work, and provenance.json to the recipe's folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK, help="folder for the corpus files")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    root = Path(sysconfig.get_paths()["stdlib"])
    train, held_out = split([*stdlib_modules(root), *help_topics()])
    write_documents(arguments.work / "train.jsonl", train)
    write_documents(arguments.work / "held_out.jsonl", held_out)
    provenance = {
        "source": "CPython standard library (Lib/**/*.py without tests, and pydoc_data.topics)",
        "python": platform.python_version(),
        "licence": "PSF-2.0",
        "train": describe(train),
        "held_out": describe(held_out),
        "held_out_modules": list(HELD_OUT),
    }
    PROVENANCE.write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({"train": provenance["train"], "held_out": provenance["held_out"]}, indent=2))


if __name__ == "__main__":
    main()
