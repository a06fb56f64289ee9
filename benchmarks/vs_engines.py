"""Tokens per second while decoding, in specdec and in the engines that are fast on a CPU, with the same weights.

Engines: OpenVINO GenAI, ONNX Runtime GenAI, llama.cpp, transformers, vLLM, each in a process and an environment of
its own, which `benchmarks/engines/install` makes. The target is the built-in one inflated, so that drafts are
accepted as by a real model; `benchmarks/engines/prepare` saves and converts it, once. Ways to decode: `plain`,
`draft` (the built-in draft model of 2.7M parameters), `lookup` (copying from the prompt), and `chain` (both, in
specdec only).

A prompt is decoded twice, for one new token and for all: the difference is the time while decoding. Engines take
turns prompt by prompt. A sweep over the number of drafted tokens and the n-gram finds each engine's best settings
on two prompts before. The n-gram is the longest match for `lookup`, which falls back to shorter ones down to one
token, and the shortest match for `chain`. Each row says with which settings it was measured, how many of its texts
are those of transformers in float32, and how many passes of the target they took. `refused` says what an engine
cannot do.

All run with `THP_MEM_ALLOC_ENABLE=1`, with which torch asks for huge pages. In all engines the C library asks for
them with `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment.

    benchmarks/engines/install                                  # 15 minutes; 6 GB in $SPECDEC_ENGINES
    benchmarks/engines/prepare 116M                             # 5 minutes
    python benchmarks/vs_engines.py --models 116M --out results.json
    python benchmarks/vs_engines.py --models 116M --engines specdec openvino --precisions int8 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _against import batches_of
from _common import Results, memory_bandwidth, progress, spread

from specdec_core import load_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig

HERE = Path(__file__).parent / "engines"
ENVIRONMENTS = Path(os.environ.get("SPECDEC_ENGINES", HERE.parents[1] / ".work" / "engines"))
PRECISIONS = {
    "specdec": {"float32": ["float32", "float32-compiled"], "int8": ["int8", "int8-compiled"]},
    "transformers": {"float32": ["float32", "float32-compiled"], "int8": ["int8"]},
    "openvino": {"float32": ["float32"], "int8": ["int8", "int8-default"]},
    "onnxruntime": {"float32": ["float32"], "int8": ["int8"]},
    "llama_cpp": {"float32": ["float32"], "int8": ["int8"]},
    "vllm": {"float32": ["float32"], "int8": []},
}
"""How each engine runs weights of each width; see the engine's module."""
METHODS = {name: ["plain", "draft", "lookup"] for name in PRECISIONS} | {
    "specdec": ["plain", "draft", "lookup", "chain"]
}
BYTES = {"float32": 4.0, "int8": 1.0}


class Worker:
    """An engine in a process of its own: see `engines/worker.py`.

    Raises:
        SystemExit: Its environment is missing.
    """

    def __init__(self, engine: str, threads: int) -> None:
        own = engine in ("specdec", "transformers")
        python = Path(sys.executable) if own else ENVIRONMENTS / engine / "bin" / "python"
        if not python.exists():
            raise SystemExit(
                f"{engine}: there is no {python}. Run benchmarks/engines/install {engine}, or name others."
            )
        env = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "THP_MEM_ALLOC_ENABLE": "1"}
        command = [str(python), str(HERE / "worker.py"), engine, str(threads)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | env, start_new_session=True
        )

    def ask(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """Send a request; return the answer, which has an `error` if the engine raised one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._signal(signal.SIGCONT)
            print(json.dumps({kind: arguments}), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
            self._signal(signal.SIGSTOP)
        except (BrokenPipeError, ProcessLookupError, ValueError):
            return {"error": f"the process ended with status {self._process.wait()}"}
        return answer

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
        self._process.communicate()

    def _signal(self, number: int) -> None:
        """Pause the engine between its turns, because some have threads that wait in a loop."""
        os.killpg(self._process.pid, number)


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    names = ("engines", "methods", "prompts", "tokens", "rounds", "threads")
    settings = {name: getattr(options, name) for name in names}
    settings["glibc_tunables"] = os.environ.get("GLIBC_TUNABLES")
    results = Results(options.out, "vs_engines", settings)
    bandwidth = memory_bandwidth()
    for models, precision, batch_size, temperature in product(
        options.models, options.precisions, options.batch_sizes, options.temperatures
    ):
        key = {"models": models, "precision": precision, "batch_size": batch_size, "temperature": temperature}
        if results.row(key) is None:
            results.add(key, measure(options, **key, bandwidth=bandwidth))
    print(json.dumps(results.data, indent=2))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["60M", "116M"], help="folders that prepare has made")
    parser.add_argument("--engines", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--precisions", nargs="+", choices=BYTES, default=list(BYTES))
    parser.add_argument("--methods", nargs="+", default=["plain", "draft", "lookup", "chain"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0])
    parser.add_argument("--gammas", nargs="+", type=int, default=[3, 5, 8], help="drafted tokens of the sweep")
    parser.add_argument("--ngrams", nargs="+", type=int, default=[2, 3], help="n-grams of the sweep")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="JSON file; an interrupted run continues there")
    return parser.parse_args()


def measure(
    options: argparse.Namespace, models: str, precision: str, batch_size: int, temperature: float, bandwidth: float
) -> dict[str, Any]:
    """Return a row for each engine, precision and method."""
    folder = ENVIRONMENTS / "models" / models
    if not (folder / "target").exists():
        raise SystemExit(f"There is no {folder}. Run benchmarks/engines/prepare {models}.")
    prompts = prompts_of(folder / "target", options.prompts, equally_long=batch_size > 1)
    batches = batches_of(prompts, batch_size)
    weights = (folder / "target" / "model.safetensors").stat().st_size / 4 * BYTES[precision]
    cells: list[Cell] = []
    versions: dict[str, str] = {}
    refused: dict[str, str] = {}
    workers = []
    try:
        for engine, how in [(e, how) for e in options.engines for how in PRECISIONS[e][precision]]:
            progress(f"{models} {precision}, batch {batch_size}, T = {temperature}: {engine} {how} ...")
            workers.append(worker := Worker(engine, options.threads))
            methods = [name for name in METHODS[engine] if name in options.methods]
            answer = worker.ask("load", models=str(folder), precision=how, methods=methods)
            if "error" in answer:
                refused[f"{engine} {how}"] = answer["error"]
                continue
            versions |= answer["versions"]
            for method in methods:
                cell = Cell(worker, engine, how, method, options.tokens, temperature)
                if error := best(cell, batches[:2], options):
                    refused[f"{engine} {how} {method}"] = error
                else:
                    cells.append(cell)
        for _, batch in product(range(options.rounds), batches):
            for cell in list(cells):
                if error := cell.decode(batch):
                    refused[" ".join(cell.names.values())] = error
                    cells.remove(cell)
    finally:
        for worker in workers:
            worker.close()
    expected = reference(folder / "target", batches, options.tokens) if temperature == 0 else None
    return {
        "versions": versions,
        "gammas": options.gammas,
        "ngrams": options.ngrams,
        "floor_tokens_per_second": round(batch_size * bandwidth / weights, 2),
        "rows": [cell.row(expected) for cell in cells],
        "refused": refused,
    }


class Cell:
    """An engine with one way to decode, and what it has decoded.

    Attributes:
        settings: `gamma` and `ngram`; those that the method does not have are ignored.
    """

    def __init__(
        self, worker: Worker, engine: str, precision: str, method: str, tokens: int, temperature: float
    ) -> None:
        self.names = {"engine": engine, "precision": precision, "method": method}
        self._worker, self._tokens, self._temperature = worker, tokens, temperature
        self.settings: dict[str, int] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what was decoded."""
        self._rates: list[float] = []
        self._answers: dict[str, dict[str, Any]] = {}

    def decode(self, batch: Sequence[Sequence[int]]) -> str | None:
        """Decode a batch; return the engine's error if there is one."""
        given = {"method": self.names["method"], "settings": self.settings, "temperature": self._temperature}
        first = self._worker.ask("generate", prompts=batch, tokens=1, **given)
        if "error" in first:
            return str(first["error"])
        whole = self._worker.ask("generate", prompts=batch, tokens=self._tokens, **given)
        if "error" in whole:
            return str(whole["error"])
        short = [len(row) for row in whole["tokens"] if len(row) != self._tokens]
        if short or len(whole["tokens"]) != len(batch):
            return f"{len(whole['tokens'])} texts, some of {short[:1]} tokens; {self._tokens} were asked for"
        seconds = whole["seconds"] - first["seconds"]
        if seconds > 0:  # what else runs on the machine may take longer than all tokens
            self._rates.append(len(batch) * (self._tokens - 1) / seconds)
        self._answers[json.dumps(batch)] = whole
        return None

    @property
    def rate(self) -> float:
        """The median of tokens per second, or 0 if no decoding took longer than its first token."""
        return median(self._rates or [0.0])

    def row(self, expected: dict[str, list[list[int]]] | None) -> dict[str, Any]:
        """Return what was measured."""
        passes = [answer["passes"] for answer in self._answers.values()]
        texts = [
            mine == other
            for key, answer in self._answers.items()
            for mine, other in zip(
                answer["tokens"], expected[key] if expected else [], strict=expected is not None
            )
        ]
        return self.names | {
            "settings": self.settings,
            "tokens_per_second": spread(self._rates or [0.0], 2),
            "target_passes": None if None in passes else sum(passes),
            "equal_texts": f"{sum(texts)} of {len(texts)}" if expected else None,
        }


def best(cell: Cell, batches: Sequence[Sequence[Sequence[int]]], options: argparse.Namespace) -> str | None:
    """Give a cell its fastest settings; return the engine's error if there is one."""
    method, rates = cell.names["method"], []
    gammas = options.gammas if method != "plain" else [0]
    ngrams = options.ngrams if method in ("lookup", "chain") else [0]
    for gamma, ngram in product(gammas, ngrams):
        cell.settings = {name: value for name, value in (("gamma", gamma), ("ngram", ngram)) if value}
        error = cell.decode(batches[0])  # warms up
        cell.forget()
        for batch in batches:
            error = error or cell.decode(batch)
        if error:
            return error
        rates.append((cell.rate, cell.settings))
    _, cell.settings = max(rates, key=lambda one: one[0])
    cell.forget()
    return None


def prompts_of(target: Path, count: int, *, equally_long: bool) -> list[list[int]]:
    """Return prompts of at most 48 tokens, and for batches all as long as the shortest."""
    tokenizer = load_model(target, packed=False).tokenizer
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=count), Path())
    ids = [tokenizer(prompt.text)["input_ids"][:48] for prompt in texts]
    shortest = min(map(len, ids)) if equally_long else 48
    return [one[:shortest] for one in ids]


@torch.inference_mode()
def reference(target: Path, batches: Sequence[Sequence[Sequence[int]]], tokens: int) -> dict[str, list[list[int]]]:
    """Return the texts of transformers in float32, by batch."""
    model = load_model(target, packed=False).model
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def text(ids: Sequence[int]) -> list[int]:
        given = torch.tensor([ids])
        output = model.generate(given, attention_mask=torch.ones_like(given), **options)
        return list(output[0, len(ids) :].tolist())

    return {json.dumps(batch): [text(ids) for ids in batch] for batch in batches}


if __name__ == "__main__":
    main()
