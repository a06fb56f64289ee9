"""One engine in a process of its own: `worker.py ENGINE THREADS` answers JSON lines on standard input.

    {"load": {"models": FOLDER, "precision": "float32", "methods": ["plain", "draft"]}}
    {"generate": {"method": "draft", "settings": {"gamma": 5}, "prompts": [[5]], "tokens": 64, "temperature": 0}}

The answers are {"versions": ..., "methods": ...} and {"tokens": [[...]], "seconds": ..., "passes": ...}, or
{"error": ...}. What an engine writes to standard output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from time import perf_counter
from typing import Any


def main() -> None:
    """Answer until standard input ends."""
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Any = None
    for line in sys.stdin:
        try:
            ((kind, arguments),) = json.loads(line).items()
            if kind == "load":
                engine = import_module(f"{name}_engine").Engine(threads=threads, **arguments)
                answer = {"versions": engine.versions, "methods": list(engine.methods)}
            else:
                answer = generate(engine, **arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def generate(engine: Any, **arguments: Any) -> dict[str, Any]:
    """Return new tokens of each prompt, the seconds, and passes of the target (None: the engine does not say)."""
    start = perf_counter()
    tokens, passes = engine.generate(**arguments)
    return {"seconds": perf_counter() - start, "tokens": [list(map(int, row)) for row in tokens], "passes": passes}


if __name__ == "__main__":
    main()
