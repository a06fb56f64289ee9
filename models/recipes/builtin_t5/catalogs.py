"""Read message catalogs in many formats into (English, German) pairs.

Formats: gettext `.po` and `.mo`; JSON, Java properties and JavaScript objects in two languages; Chromium's `.pak`;
and those of VS Code, TypeScript and Pyright.
"""

from __future__ import annotations

import ast
import gettext
import io
import itertools
import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recipes.builtin_t5.programs import Program

Files = dict[str, bytes]
Reader = Callable[[Program, Files], Iterator["Message"]]


@dataclass(frozen=True)
class Message:
    """One message in both languages, and its catalog."""

    english: str
    german: str
    location: str


def location_of(path: str) -> str:
    """Shorten a member's name to the part that distinguishes the catalogs of a program."""
    skipped = {"locale", "locales", "translations", "translation", "de", "de_DE", "LC_MESSAGES", "package", "dist"}
    skipped |= {".", "usr", "share", "static", "lib", "src", "i18n", "es", "dev"}
    stem = re.sub(r"\.(po|mo|json|pak|properties|js|mjs|i18n)+$", "", re.sub(r".*!/", "", path))
    stem = re.sub(r"(\.i18n)?(\.json)?$|_de(_DE)?$|-[0-9a-f]{32}$", "", stem)
    return ".".join(part for part in stem.split("/") if part not in skipped)[-60:]


# gettext


def po_entries(text: str) -> Iterator[dict[str, str]]:
    """Yield the entries of a `.po` file as dicts from keyword to string, without fuzzy and obsolete ones."""
    for block in re.split(r"\n\s*\n", text):
        entry: dict[str, str] = {}
        keyword, fuzzy = "", False
        for line in block.splitlines():
            line = line.strip()
            if line.startswith("#"):
                fuzzy = fuzzy or (line.startswith("#,") and "fuzzy" in line)
                continue
            match = re.match(r'(msgctxt|msgid|msgid_plural|msgstr(?:\[\d\])?)?\s*(".*")$', line)
            if match is None:
                continue
            keyword = match[1] or keyword
            entry[keyword] = entry.get(keyword, "") + po_string(match[2])
        if not fuzzy and entry.get("msgid"):
            yield entry


def po_string(quoted: str) -> str:
    """Return the value of one quoted string of a `.po` file."""
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), quoted[1:-1])


def read_po(_program: Program, files: Files) -> Iterator[Message]:
    """Read `.po` files; plural messages give their singular."""
    for path, content in files.items():
        for entry in po_entries(content.decode("utf-8")):
            german = entry.get("msgstr", entry.get("msgstr[0]", ""))
            yield Message(entry["msgid"], german, location_of(path))


def read_mo(_program: Program, files: Files) -> Iterator[Message]:
    """Read `.mo` files; plural messages give their singular."""
    for path, content in files.items():
        catalog = vars(gettext.GNUTranslations(io.BytesIO(content)))["_catalog"]
        for key, german in catalog.items():
            english, number = key if isinstance(key, tuple) else (key, 0)
            if number == 0:
                yield Message(english.rpartition("\x04")[2], german, location_of(path))


# One file per language, with the same keys


def flatten(tree: object, prefix: str = "") -> dict[str, str]:
    """Return the strings of nested JSON under dotted keys."""
    if isinstance(tree, str):
        return {prefix: tree}
    items: list[tuple[str, object]] = []
    if isinstance(tree, dict):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list):
        items = [(str(number), value) for number, value in enumerate(tree)]
    flat: dict[str, str] = {}
    for key, value in items:
        flat.update(flatten(value, f"{prefix}.{key}"))
    return flat


def properties(text: str) -> dict[str, str]:
    """Return the entries of a Java properties file. A doubled apostrophe becomes one."""
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    entries: dict[str, str] = {}
    for line in joined.splitlines():
        match = re.match(r"\s*([^#!\s=:][^\s=:]*)\s*[=:]\s*(.*)", line)
        if match:
            value = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), match[2])
            value = re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), value)
            entries[match[1]] = value.replace("''", "'")
    return entries


_TOKEN = re.compile(
    r"""(?P<key>[A-Za-z_$][\w$]*|"(?:\\.|[^"\\])*")\s*[:=]\s*(?=["{])|(?P<string>"(?:\\.|[^"\\])*")|(?P<open>\{)|(?P<close>\})""",
)


def javascript_strings(text: str) -> dict[str, str]:
    """Return the strings of object literals under dotted keys. The script is not run."""
    entries: dict[str, str] = {}
    stack: list[str] = []
    key = ""
    for match in _TOKEN.finditer(text):
        if match["key"]:
            key = match["key"].strip('"')
            key = "" if key in ("de", "en") else key
        elif match["open"]:
            stack.append(key)
        elif match["close"]:
            del stack[-1:]
        elif key and match["string"]:
            entries[".".join([*stack, key])] = javascript_string(match["string"])
            key = ""
    return entries


def javascript_string(quoted: str) -> str:
    """Return the value of a JavaScript string literal; `quoted` includes the quotes.

    Raises:
        ValueError: It is not a string literal.
    """
    inside = re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda found: chr(int(found[1], 16)), quoted)
    inside = re.sub(r"\\/", "/", inside)
    try:
        value = ast.literal_eval(inside.replace("\n", "\\n"))
    except SyntaxError as error:
        raise ValueError(f"not a string literal: {quoted[:60]!r}") from error
    return str(value).encode("utf-16", "surrogatepass").decode("utf-16")


def load_strings(path: str, content: bytes) -> dict[str, str]:
    """Read a file of keyed strings, with the format of its suffix (.json, .properties, .js, .mjs)."""
    if path.endswith(".json"):
        return flatten(json.loads(content))
    text = content.decode("utf-8")
    return properties(text) if path.endswith(".properties") else javascript_strings(text)


def read_paired(program: Program, files: Files) -> Iterator[Message]:
    """Read pairs of files, one per language, with the same keys."""
    sides: list[dict[tuple[str | None, ...], str]] = []
    for pattern in (program.german, program.english):
        matches = {path: re.fullmatch(pattern, path) for path in files}
        sides.append({match.groups(): path for path, match in matches.items() if match})
    for groups, german_path in sides[0].items():
        if groups not in sides[1]:
            continue
        german = load_strings(german_path, files[german_path])
        english = load_strings(sides[1][groups], files[sides[1][groups]])
        for key, value in english.items():
            yield Message(value, german.get(key, ""), location_of(german_path))


# Formats of single programs


def pak_strings(content: bytes) -> dict[int, str]:
    """Return the strings of a Chromium resource pack (version 4 or 5) under their resource ids.

    Raises:
        ValueError: The pack has another version.
    """
    (version,) = struct.unpack_from("<I", content)
    if version == 5:
        count, aliases = struct.unpack_from("<HH", content, 8)
        start = 12
    elif version == 4:
        (count,), aliases, start = struct.unpack_from("<I", content, 4), 0, 9
    else:
        raise ValueError(f"resource pack of version {version}; versions 4 and 5 are read")
    entries = [struct.unpack_from("<HI", content, start + 6 * number) for number in range(count + 1)]
    values = [
        content[begin:end].decode("utf-8", "replace") for (_, begin), (_, end) in itertools.pairwise(entries)
    ]
    strings = {entry[0]: value for entry, value in zip(entries, values, strict=False)}
    for number in range(aliases):
        alias, index = struct.unpack_from("<HH", content, start + 6 * (count + 1) + 4 * number)
        strings[alias] = values[index]
    return strings


def read_pak(program: Program, files: Files) -> Iterator[Message]:
    """Read the two resource packs of Chromium."""
    german, english = (
        pak_strings(next(content for path, content in files.items() if re.fullmatch(pattern, path)))
        for pattern in (program.german, program.english)
    )
    for key, value in english.items():
        yield Message(value, german.get(key, ""), "locales")


def read_vscode(program: Program, files: Files) -> Iterator[Message]:
    """Read the language pack of VS Code.

    The main catalog is a list indexed by number; its English texts are in the calls `localize(number, text)` of
    the editor's scripts. In the `bundle` of an extension, the keys are the English texts.
    """
    main: list[str | None] = []
    for path, content in files.items():
        if path.endswith("main.i18n.json.js"):
            text = content.decode("utf-8")
            listed = text[text.index("[") : text.rindex("]") + 1].replace("undefined", "null")
            main = json.loads(listed)
        elif path.endswith(".i18n.json"):
            bundle = json.loads(content)["contents"].get("bundle", {})
            for english, german in bundle.items():
                if english.count("/") == german.count("/"):  # otherwise a note to translators follows the text
                    yield Message(english, german, location_of(path))
    call = re.compile(r"""localize2?\((\d+),\s*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""")
    for path, content in files.items():
        if re.fullmatch(program.english, path):
            for match in call.finditer(content.decode("utf-8")):
                number = int(match[1])
                if number < len(main):
                    yield Message(javascript_string(match[2]), main[number] or "", "main")


def read_typescript(program: Program, files: Files) -> Iterator[Message]:
    """Read TypeScript's German diagnostics; the English ones are in the calls `diag(...)` of its compiler."""
    german: dict[str, str] = {}
    for path, content in files.items():
        if re.fullmatch(program.german, path):
            german = json.loads(content)
    call = re.compile(r"""diag\(\d+, \d+ /\* \w+ \*/, ("(?:\\.|[^"\\])*"), ("(?:\\.|[^"\\])*")""")
    for path, content in files.items():
        if re.fullmatch(program.english, path):
            for match in call.finditer(content.decode("utf-8")):
                key, english = json.loads(match[1]), json.loads(match[2])
                yield Message(english, german.get(key, ""), "diagnosticMessages")


def read_pyright(_program: Program, files: Files) -> Iterator[Message]:
    """Read Pyright's messages; its bundle has one JSON text per language."""
    found: dict[str, dict[str, str]] = {}
    for content in files.values():
        for match in re.finditer(r"JSON\.parse\(('\{\"CallHierarchy(?:\\.|[^'\\])*')\)", content.decode("utf-8")):
            strings = flatten(json.loads(javascript_string(match[1])))
            for language, mark in (("de", " nicht "), ("en", " not ")):
                if sum(mark in value for value in strings.values()) > 50:
                    found.setdefault(language, strings)
    german = found.get("de", {})
    for key, english in found.get("en", {}).items():
        if not key.endswith(".comment"):  # a note to translators
            yield Message(english, german.get(key.removesuffix(".message"), ""), "localization")


READERS: dict[str, Reader] = {
    "po": read_po,
    "mo": read_mo,
    "paired": read_paired,
    "pak": read_pak,
    "vscode": read_vscode,
    "typescript": read_typescript,
    "pyright": read_pyright,
}


def read(program: Program, files: Files) -> list[Message]:
    """Return all messages of a program.

    Raises:
        ValueError: There is none, or a catalog has another format.
    """
    messages = list(READERS[program.reader](program, files))
    if not messages:
        raise ValueError(f"no message found in {len(files)} files")
    return messages
