"""KenLM models as drafters against ARPA tables of the same n-grams: acceptance, cost and memory.

The n-grams are estimated from the Python standard library, and written as an ARPA file, of which KenLM's own
`build_binary` makes the binaries. In one JSON object, for each model and number of candidates:

* `alpha`: the acceptance rate at temperatures 0 and 1, replayed exactly on texts of the record that ships.
* `microseconds_per_token`: processor time of a draft token, for drafts of 4 tokens along recorded texts; and `c`,
  that time over a pass of `builtin:target` over one token, timed beforehand.
* `seconds_to_load`: with the table of successors in its file, and `seconds_of_table` to find it the first time.
* `megabytes`: of the file; `resident_private` and `resident_mapped`: how much more of either the process holds
  after drafting. The kernel shares what is mapped between processes, and frees it when memory is short.

    python benchmarks/kenlm_models.py --build-binary kenlm/build/bin/build_binary
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from _common import interleaved, report
from packed import verify_step
from transformers.utils import logging as hf_logging

from specdec_core import LoadedModel, default_registry, load_model
from specdec_core.decoding.arguments import make_drafter
from specdec_core.decoding.drawing import DraftRecorder
from specdec_core.interface import SessionInfo
from specdec_core.interface.settings import SamplingSettings
from specdec_core.offline.record.format import Record, RecordedText, RecordPart
from specdec_core.offline.record.store import read_record
from specdec_core.offline.replay.drafter_replay import DrafterReplay
from specdec_core.offline.replay.replayed_metrics import expected_metrics
from specdec_core.sampling.generators import RowGenerators
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.study import run_model
from specdec_drafters.common.texts import target_documents
from specdec_drafters.ngram.arpa import write_arpa
from specdec_drafters.ngram.kneser_ney import fit

FORMS = {"probing": ["probing"], "trie": ["trie"], "trie -q 8 -b 8": ["-q", "8", "-b", "8", "trie"]}


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    target = load_model("builtin:target")
    record = read_record("builtin:code")
    seconds, _ = interleaved({"pass": verify_step(target, context=64, drafted=0)}, repeats=100)
    single = median(seconds["pass"])
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            {**labels, **measured(settings, target, record, options)}
            for order in options.orders
            for labels, settings in models(order, target, Path(folder), options)
        ]
    for row in rows:
        row["c"] = round(row["microseconds_per_token"] / 1e6 / single, 3)
    report({"benchmark": "kenlm", "gamma": options.gamma, "texts": options.texts, "rows": rows})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-binary", required=True, help="KenLM's program build_binary")
    parser.add_argument("--orders", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--candidates", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--forms", nargs="+", choices=("arpa", *FORMS), default=["arpa", *FORMS])
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--texts", type=int, default=24, help="about how many texts of each part of the record")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def models(
    order: int, target: LoadedModel, folder: Path, options: argparse.Namespace
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield labels and settings of each drafter over n-grams of an order, whose files it makes."""
    fitted = fit(target_documents("ngram", "builtin:stdlib", None, target.info()), target.vocab_size, order)
    arpa = folder / f"stdlib.{order}.arpa"
    write_arpa(arpa, fitted.levels, fitted.known)
    del fitted
    for form in options.forms:
        path = arpa if form == "arpa" else arpa.with_suffix(f".{form.split()[-1]}{len(form)}")
        if form != "arpa":
            subprocess.run([options.build_binary, *FORMS[form], arpa, path], check=True, capture_output=True)
        for candidates in options.candidates:
            source = {"arpa" if form == "arpa" else "kenlm": str(path)}
            labels = {"order": order, "form": form, "candidates": candidates}
            yield labels, {"name": "ngram", **source, "candidates": candidates}


def measured(
    settings: dict[str, Any], target: LoadedModel, record: Record, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what one drafter does, and what it takes."""
    registry, path = default_registry(), Path(settings.get("kenlm") or settings["arpa"])
    config = run_model(registry).model_validate({"drafter": settings, "gamma": options.gamma}).drafter
    row: dict[str, Any] = {"megabytes": round(path.stat().st_size / 1e6, 2)}
    if "kenlm" in settings and not list(path.parent.glob(f"{path.name}.*.successors")):
        start = perf_counter()
        make_drafter(target, config, registry=registry)
        row["seconds_of_table"] = round(perf_counter() - start, 2)
    before, start = resident(), perf_counter()
    drafter = make_drafter(target, config, registry=registry)
    row["seconds_to_load"] = round(perf_counter() - start, 3)
    row["alpha"] = {
        str(part.header.task): round(
            expected_metrics(
                DrafterReplay(
                    record,
                    part,
                    drafter,
                    max_gamma=options.gamma,
                    texts=some_texts(part, options.texts),
                    target=target,
                ).acceptance(),
                options.gamma,
            ).metrics.alpha,
            4,
        )
        for part in record.parts
    }
    after = resident()
    row |= {f"resident_{kind}": round((after[kind] - before[kind]) / 1e6, 1) for kind in before}
    fresh = make_drafter(target, config, registry=registry)  # no candidates are cached
    part = record.parts[-1]
    texts = [part.texts[number] for number in some_texts(part, options.texts)[:8]]
    row["microseconds_per_token"] = microseconds(fresh, texts, target.vocab_size, options.gamma)
    return row


def microseconds(drafter: Any, texts: Iterable[RecordedText], vocab: int, gamma: int) -> float:
    """Return the processor time of a draft token, at every third token of some texts."""
    recorder = DraftRecorder(LogitsToProbs(SamplingSettings()), RowGenerators([0]), 1, vocab, gamma, "cpu")
    session = drafter.open(SessionInfo(1, vocab, 4096, gamma, "cpu"))
    seconds, drafted = 0.0, 0
    with torch.inference_mode():
        for text in texts:
            tokens = [*text.prompt, *text.tokens]
            for end in range(len(text.prompt), len(tokens), 3):
                start = process_time()
                recorder.start([tokens[:end]], (gamma,))
                drafted += session.propose(recorder).lengths[0]
                seconds += process_time() - start
    return round(1e6 * seconds / drafted, 1)


def some_texts(part: RecordPart, count: int) -> Sequence[int]:
    """Return the numbers of evenly chosen texts of a part."""
    return range(0, len(part), max(1, len(part) // count))


def resident() -> dict[str, int]:
    """Return the bytes of memory that this process holds: its own, and mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {"private": "RssAnon", "mapped": "RssFile"}
    return {kind: 1024 * int(fields[name].split()[0]) for kind, name in sizes.items()}


if __name__ == "__main__":
    main()
