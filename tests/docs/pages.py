"""The pages that readers see, taken apart."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not {"assets", "examples"} & set(path.relative_to(ROOT).parts)
)
_FENCE = re.compile(r"^```\s*\{?\.?(?P<language>[\w-]+)\}?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}: {self.text.splitlines()[0] if self.text else ''}"


def name(page: Path) -> str:
    """A page as messages call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str) -> list[Block]:
    """Every fenced block in one of the languages."""
    return [
        Block(page, found["language"], found["text"])
        for page in PAGES
        for found in _FENCE.finditer(page.read_text(encoding="utf-8"))
        if found["language"] in languages
    ]


def spans() -> list[tuple[Path, str]]:
    """Every piece of code within a line."""
    texts = [(page, _FENCE.sub("", page.read_text(encoding="utf-8"))) for page in PAGES]
    return [(page, found["text"]) for page, text in texts for found in _SPAN.finditer(text)]


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
