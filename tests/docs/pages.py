"""The pages that readers see, taken apart."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not {"assets", "examples"} & set(path.relative_to(ROOT).parts)
)
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""The page whose commands need those before them; test_tutorial.py runs them."""
_FENCE = re.compile(
    r"^(?:<!-- include: (?P<source>\S+) -->\n)?```\s*\{?\.?(?P<language>[\w-]+)\}?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_SPAN = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; for the output of a command, `language` is the command.

    `source` is the file that it quotes, if it does.
    """

    page: Path
    language: str
    text: str
    source: str | None = None

    def __str__(self) -> str:
        return f"{name(self.page)}: {self.text.splitlines()[0] if self.text else ''}"


def name(page: Path) -> str:
    """Return a page as messages call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str, page: str = "") -> list[Block]:
    """Return every fenced block in one of the languages; of one page only, if it is named."""
    return [
        Block(path, found["language"], found["text"], found["source"])
        for path in PAGES
        for found in _FENCE.finditer(path.read_text(encoding="utf-8"))
        if found["language"] in languages and page in ("", name(path))
    ]


def spans() -> list[tuple[Path, str]]:
    """Return every piece of inline code."""
    texts = [(page, _FENCE.sub("", page.read_text(encoding="utf-8"))) for page in PAGES]
    return [(page, found["text"]) for page, text in texts for found in _SPAN.finditer(text)]


def outputs(*pages: Path) -> list[Block]:
    """Return every output that some pages show, by default all, with its command."""
    walk = load(ROOT / "docs" / "walk.py")
    return [
        Block(page, walk.command_of(found), found["text"].strip("\n"))
        for page in pages or PAGES
        for found in re.finditer(walk.PRINTED, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ]


def unchanging(command: str, printed: str) -> list[Any]:
    """Return the lines of an output without times; of tables with times, the words of lines with numbers.

    What `measure` and `record` sample at temperature 1 is left out, as rounding decides where texts end.
    """
    text = re.sub(r"[\d.]+ tokens/s|in [\d.]+s( \([\d:]+\))?| \(in doubt\)", "", printed)
    if re.match(r"specdec (measure|record)\b", command):
        text = re.sub(r"^( 1 .*|.*temperature 1)$", "", text, flags=re.MULTILINE)
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    if not re.match(r"specdec (compare|measure)\b", command):
        return text.splitlines()
    counts = text.partition("\nSteps with")[0]
    counts = re.sub(r"c = \S+|\S+( ±\S+)? +\S+×.*", "", counts)
    return [line.split() for line in counts.splitlines() if re.search(r"\d", line)]


def shell_lines(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script as words, without redirections and settings of the environment."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;|\|", line):
            words = shlex.split(part, comments=True)
            end = next((n for n, word in enumerate(words) if word[0] in "<>" or word == "2>&1"), len(words))
            start = next((n for n, word in enumerate(words) if "=" not in word), end)
            if words[start:end]:
                yield words[start:end]


def shown_commands() -> list[list[str]]:
    """Return every command of the pages once, as words, but for the tutorial."""
    shown = [block for block in blocks("sh") if block.page != TUTORIAL]
    pages = [page for page in PAGES if page != TUTORIAL]
    texts = [block.text for block in shown] + [output.language for output in outputs(*pages)]
    return [list(words) for words in dict.fromkeys(tuple(words) for text in texts for words in shell_lines(text))]


@cache
def load(path: Path) -> ModuleType:
    """Import a file that is in no package, as Python runs it: it finds the files beside it."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    sys.path.remove(str(path.parent))
    return module
