"""Logs of other programs that are not what they should be: imported as they are, or refused with the line."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from specdec_core.interface import SpecdecError
from specdec_core.interface.settings import SamplingSettings, TargetConfig
from specdec_core.interface.trainer import NoProgress
from specdec_core.offline.record import Record, read_record
from specdec_core.offline.record.import_log import ImportOptions, import_record
from tests.robustness.attack import BrokenError
from tests.robustness.files import change, damaged
from tests.robustness.folders import model

_TEXTS = {"tokens": ["d", "e", "?"], "token_logprobs": [-0.5, -1.25, 0.0]}
_CHAT = [
    {"token": "d", "logprob": -0.5, "bytes": [100], "top_logprobs": []},
    {"token": "token_id:8", "logprob": 0.0, "bytes": None},
]
_ROWS = [{"3": {"logprob": -0.5, "rank": 1}, "1": {"logprob": -9}}, {"4": -1.25}]
FORMS: Mapping[str, Any] = {
    "our own": {"prompt": [0, 2], "tokens": [3, 4, 8], "logprobs": [-0.5, -1.25, 0], "finish_reason": "length"},
    "completions": {"prompt": "a c", "choices": [{"index": 0, "finish_reason": "length", "logprobs": _TEXTS}]},
    "a batch": {
        "request": {"prompt": "a c", "top_p": 1.0, "logit_bias": {}},
        "response": {"body": {"choices": [{"logprobs": _TEXTS, "token_ids": [3, 4, 8], "finish_reason": "stop"}]}},
    },
    "chat": {
        "messages": [{"role": "user", "content": "a c"}],
        "choices": [{"logprobs": {"content": _CHAT}, "finish_reason": "length"}],
    },
    "vLLM": {
        "prompt_token_ids": [0, 2],
        "outputs": [{"token_ids": [3, 4], "finish_reason": "length", "logprobs": _ROWS}],
    },
}
"""A sound line of each form."""
_RAW = (
    *(b"1e400", b"-1e400", b"9" * 400, b"9" * 5000, b"-0", b"1.5e-400", b"NaN", b"-Infinity", b"2.0", b"true"),
    *(b'"\\ud800"', b'"\\u0000"', b'"token_id:' + b"9" * 5000 + b'"', b'"token_id:\\u0663"', b'"bytes:\\\\xff"'),
    *(
        b'"bytes:\\\\x"',
        b'"' + b"x" * 10_000_000 + b'"',
        b"[" * 900 + b"]" * 900,
        b"[" * 100_000,
        b'{"": {"": []}}',
    ),
    *(b'{"": {"": []}}', b"[256]", b"[-1]", b"[true]", b"[1e2]", b"[[]]"),
)
"""JSON, or nearly, instead of a value."""
_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}c"
_SAMPLINGS = (SamplingSettings(), SamplingSettings(temperature=0))


def logs(random: Random, folder: Path) -> Iterator[str]:
    """A log with a hostile line: it is imported as it is, or refused with file and line."""
    form = random.choice(sorted(FORMS))
    sound = [json.dumps(FORMS[one]).encode() for one in random.choices(sorted(FORMS), k=2)]
    how = random.choice([_values, _values, _literal, _bytes, _whole])
    did, bad = how(random, copy.deepcopy(FORMS[form]))
    index = random.randrange(3)
    lines = [*sound[:index], bad, *sound[index:]]
    path = folder / "log.jsonl"
    newline = random.choice([b"\n", b"\n", b"\r\n"])
    path.write_bytes(random.choice([b"", b"", b"\xef\xbb\xbf"]) + newline.join(lines) + newline)
    sampling = random.choice(_SAMPLINGS)
    yield f"{form}, line {index + 1}, temperature {sampling.temperature:g}: {did}"
    record = _imported(path, folder, sampling, None if how is _bytes else index + 1)
    if record is not None:
        _check(record, sampling)


def _values(random: Random, line: Any) -> tuple[str, bytes]:
    did = "; ".join(change(random, line) for _ in range(random.randint(1, 2)))
    return did, json.dumps(line).encode()


def _literal(random: Random, line: Any) -> tuple[str, bytes]:
    """Put a hostile piece of JSON instead of a value."""
    mark = "@mark@"
    parts = list(_parts(line))
    node, key = random.choice(parts)
    node[key] = mark
    piece = random.choice(_RAW)
    return f"{key!r} is {piece[:30]!r}", json.dumps(line).encode().replace(f'"{mark}"'.encode(), piece)


def _parts(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _parts(node[key])


def _bytes(random: Random, line: Any) -> tuple[str, bytes]:
    return "bytes changed", damaged(random, json.dumps(line).encode())


def _whole(random: Random, line: Any) -> tuple[str, bytes]:
    content = json.dumps(line).encode()
    key = random.choice(sorted(line))
    again = f", {json.dumps(key)}: {random.choice(['null', '[]', '1'])}}}"
    return random.choice(
        [
            ("nothing", content),
            ("torn", content[: random.randrange(1, len(content))]),
            ("two in a line", content + content),
            (f"{key!r} twice", content[:-1] + again.encode()),
            ("no object", random.choice([b"[]", b"null", b"NaN", b"1", b'"x"', b"{}", b'{"error": {}}'])),
            ("a header of CSV", b"prompt,tokens"),
            ("NULs", b"\x00" * 20),
            ("spaces of 10 MB", content + b" " * 10_000_000),
        ]
    )


def _imported(path: Path, folder: Path, sampling: SamplingSettings, line: int | None) -> Record | None:
    """Return the record of a log, or None if it was refused as it should be."""
    options = ImportOptions(TargetConfig(model=str(model())), sampling, chat_template=_TEMPLATE)
    try:
        import_record(path, folder / "record", NoProgress(), options)
    except SpecdecError as error:
        said = str(error)
        if str(path) not in said or (line is not None and f"{path}:{line}" not in said):
            raise BrokenError(f"the message names no line: {said[:200]}") from error
        if len(said) > 2000:
            raise BrokenError(f"a message of {len(said)} characters") from error
        if left := [one.name for one in (folder / "record").iterdir() if one.name != ".lock"]:
            raise BrokenError(f"left behind: {left}") from error
        return None
    return read_record(folder / "record")


def _check(record: Record, sampling: SamplingSettings) -> None:
    """Check that every text of a record is one that a target with nine tokens can have written."""
    texts = list(record.parts[0])
    if len(texts) < 2:
        raise BrokenError(f"{len(texts)} texts were imported, and two lines are sound")
    for text in texts:
        ids = [*text.prompt, *text.tokens.tolist()]
        if not text.prompt or not len(text.tokens) or not all(0 <= one < 9 for one in ids):
            raise BrokenError(f"the tokens {ids}")
        values = text.probabilities.tolist()
        if len(values) != len(text.tokens) or not all(math.isfinite(p) and 0 < p <= 1 for p in values):
            raise BrokenError(f"the probabilities {values}")
        if sampling.greedy and set(values) != {1.0}:
            raise BrokenError(f"greedy text with the probabilities {values}")
