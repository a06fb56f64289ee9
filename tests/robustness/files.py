"""Studies, prompts and n-grams that are not what they should be: read, or refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from specdec_core.decoding import Decoder
from specdec_core.interface import SpecdecError
from specdec_core.study import load_study
from tests.robustness.attack import BrokenError
from tests.robustness.plugins import LENGTH, PROMPTS, VOCAB, expected, target

EXAMPLES = Path(__file__).parents[2] / "examples"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**30, -(10**30), 2**63, 1e308, float("inf"), float("nan"), 1e-320),
    *("", " ", "x", "x" * 300, "\x00", "\x1b[31m", "\u202e", "\ud800", "~nobody/x", "/dev/zero", "/", ".", ".."),
    *(
        "a/../../../etc/passwd",
        "{{ 1/0 }}",
        "{% for x in range(9) %}",
        "=cmd()",
        "[bold]",
        "%s%n",
        "builtin:nothing",
    ),
    *([], [None], [[]], [1, "a", None], {}, {"a": 1}, {"name": None}, {"name": "random", "seed": -1}, {1: 2}),
    *("2026-11-22", "1e5", "0x10", "1_000", "yes", "null", "12:30:45"),
)
PIECES = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b"\x1b[31m", b"\xc3\x28", b"\xed\xa0\x80"),
    *(b"{", b"}", b"[", b"]", b'"', b"'", b":", b",", b"-", b"&a", b"*a", b"!!python/object:os.system", b"!!set"),
    *(
        b"9" * 5000,
        b"nan",
        b"-inf",
        b"1e300",
        b"1e400",
        b"\\data\\",
        b"\\end\\",
        b"ngram 1=99999999",
        b"<s>",
        b"-99",
    ),
)


def studies(random: Random, folder: Path) -> Iterator[str]:
    """A study of the examples with some of its values, keys or bytes changed."""
    source = random.choice(sorted(EXAMPLES.glob("*.yaml")))
    data = yaml.safe_load(source.read_bytes())
    changes = [change(random, data) for _ in range(random.randint(1, 3))]
    content = yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        content = damaged(random, content)
        changes.append("bytes changed")
    yield f"{source.name}: {'; '.join(changes)}"
    path = folder / "study.yaml"
    path.write_bytes(content)
    _read(path)


def prompts(random: Random, folder: Path) -> Iterator[str]:
    """A file of prompts with some bytes changed."""
    kind = random.choice([".jsonl", ".json", ".csv", ".txt", ".md"])
    rows = [{"prompt": "import os", "reference": "x", "id": n} for n in range(5)]
    whole = {
        ".jsonl": "\n".join(map(json.dumps, rows)),
        ".json": json.dumps(rows),
        ".csv": "prompt,reference\nimport os,x\n'a,b\n",
    }.get(kind, "import os\n\nimport sys\n")
    path = folder / f"prompts{kind}"
    path.write_bytes(damaged(random, whole.encode()))
    template = random.choice(["", ", template: '{{ prompt }}'", ", prompt: reference", ", limit: 1"])
    yield f"{kind}{template}: {path.read_bytes()[:80]!r}"
    study = folder / "study.yaml"
    study.write_text(
        f"target: builtin:target\nprompts: {{file: prompts{kind}{template}}}\nruns: [drafter: random]\n"
    )
    _read(study)


def _read(path: Path) -> None:
    try:
        load_study(path)
    except SpecdecError as error:
        if not str(error).strip():
            raise BrokenError(f"a {type(error).__name__} without a message") from error
        if len(str(error)) > 20_000:
            raise BrokenError(f"a message of {len(str(error))} characters") from error


def change(random: Random, data: Any) -> str:
    """Change a random part of nested data; return what was done."""
    spots: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            spots.append((node, key))
            collect(node[key])

    collect(data)
    if not spots:
        return "nothing left to change"
    node, key = random.choice(spots)
    value = random.choice(VALUES)
    act = random.choice(["set", "set", "set", "delete", "nest", "rename", "add"])
    if act == "delete":
        del node[key]
    elif act == "nest":
        node[key] = [node[key]] if random.random() < 0.5 else {"name": node[key]}
    elif act == "rename" and isinstance(node, dict):
        node[str(value)] = node.pop(key)
    elif act == "add" and isinstance(node, dict):
        node[f"extra {random.randrange(9)}"] = value
    else:
        node[key] = value
    return f"{act} {key!r} ({value!r:.30})"


def damaged(random: Random, content: bytes) -> bytes:
    """Return bytes with pieces inserted, removed or replaced."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(content) + 1)
        until = min(len(content), at + random.choice([0, 0, 1, 5, 50]))
        content = content[:at] + random.choice([b"", *PIECES]) + content[until:]
    return content


@cache
def _arpa() -> bytes:
    unigrams = [f"-1.0\t{token}\t-0.2" for token in ("<unk>", "<s>", "</s>", *range(VOCAB))]
    bigrams = [f"-0.5\t{token}\t{token + 1}" for token in range(VOCAB - 1)]
    head = f"\\data\\\nngram 1={len(unigrams)}\nngram 2={len(bigrams)}\n"
    parts = ["\n\\1-grams:", *unigrams, "\n\\2-grams:", *bigrams, "\n\\end\\\n"]
    return (head + "\n".join(parts)).encode()


def ngrams(random: Random, folder: Path) -> Iterator[str]:
    """An ARPA file with some bytes changed drafts without changing the output, or is refused."""
    content = damaged(random, _arpa())
    yield "an ARPA file with some bytes changed"
    (folder / "ngrams.arpa").write_bytes(content)
    try:
        decoder = Decoder(target(), {"name": "ngram", "arpa": folder / "ngrams.arpa"}, gamma=3, temperature=0)
    except SpecdecError:
        return
    result = decoder.generate(PROMPTS, **LENGTH)
    if tuple(one.tokens for one in result) != expected():
        raise BrokenError("wrong tokens")
    if result.failures:
        raise BrokenError(f"failed only when it drafted: {result.failures[0]}")
