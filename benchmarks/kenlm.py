"""KenLM models as drafters against ARPA tables of the same n-grams: acceptance, cost and memory.

The n-grams are estimated from the Python standard library, and written as an ARPA file, of which KenLM's own
`build_binary` makes the binaries. In one JSON object, for each model and number of candidates:

* `alpha`: the acceptance rate at temperatures 0 and 1, replayed exactly on the record that ships, with gamma 4.
* `microseconds_per_token` and `c`: the time of a draft token while the built-in target, and one of 116 million
  parameters, decode; and the same over the time of a forward pass.
* `seconds_to_load`: with the table of successors in its file, and `seconds_of_table` to find it the first time.
* `megabytes`: of the file; `resident_private` and `resident_mapped`: how much more of either the process holds
  after drafting. The kernel shares what is mapped between processes, and frees it when memory is short.

    python benchmarks/kenlm.py --build-binary kenlm/build/bin/build_binary
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _common import report, spread
from transformers.utils import logging as hf_logging

from specdec_core import Decoder, LoadedModel, default_registry, load_model
from specdec_core.decoding import Metrics, make_drafter
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import inflate
from specdec_core.offline.record import Record, read_record
from specdec_core.offline.replay import DrafterReplay, expected_metrics
from specdec_core.study import run_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_drafters.common.texts import target_documents
from specdec_drafters.ngram.arpa_writer import write_arpa
from specdec_drafters.ngram.kneser_ney import fit

FORMS = {"probing": ["probing"], "trie": ["trie"], "trie -q 8 -b 8": ["-q", "8", "-b", "8", "trie"]}


def main() -> None:
    """Run the benchmark and print the result."""
    options = parse()
    torch.set_num_threads(options.threads)
    hf_logging.disable_progress_bar()
    target = load_model("builtin:target")
    targets = [target, inflate(target, options.inflate_layers, options.inflate_width)]
    record = read_record("builtin:code")
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            {**labels, **measured(settings, targets, record, options)}
            for order in options.orders
            for labels, settings in models(order, target, Path(folder), options)
        ]
    names = [f"{sum(weight.numel() for weight in one.model.parameters()):,}" for one in targets]
    report({"benchmark": "kenlm", "gamma": options.gamma, "parameters_of_targets": names, "rows": rows})


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-binary", required=True, help="KenLM's program build_binary")
    parser.add_argument("--orders", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--candidates", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--forms", nargs="+", choices=("arpa", *FORMS), default=["arpa", *FORMS])
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=4, help="prompts that are decoded for the cost")
    parser.add_argument("--new-tokens", type=int, default=64, help="new tokens per prompt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inflate-layers", type=int, default=16)
    parser.add_argument("--inflate-width", type=int, default=8192)
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
    settings: dict[str, Any], targets: list[LoadedModel], record: Record, options: argparse.Namespace
) -> dict[str, Any]:
    """Return what one drafter does, and what it takes."""
    registry, path = default_registry(), Path(settings.get("kenlm") or settings["arpa"])
    config = run_model(registry).model_validate({"drafter": settings, "gamma": options.gamma}).drafter
    row: dict[str, Any] = {"megabytes": round(path.stat().st_size / 1e6, 2)}
    if "kenlm" in settings and not list(path.parent.glob(f"{path.name}.*.successors")):
        start = perf_counter()
        make_drafter(targets[0], config, registry=registry)
        row["seconds_of_table"] = round(perf_counter() - start, 2)
    before, start = resident(), perf_counter()
    drafter = make_drafter(targets[0], config, registry=registry)
    row["seconds_to_load"] = round(perf_counter() - start, 3)
    row["alpha"] = {
        str(part.header.task): round(
            expected_metrics(
                DrafterReplay(record, part, drafter, max_gamma=options.gamma, target=targets[0]).acceptance(),
                options.gamma,
            ).metrics.alpha,
            4,
        )
        for part in record.parts
    }
    after = resident()
    row |= {f"resident_{kind}": round((after[kind] - before[kind]) / 1e6, 1) for kind in before}
    row["targets"] = [costs(target, drafter, options) for target in targets]
    return row


def costs(target: LoadedModel, drafter: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return microseconds per draft token and c, decoding with a target."""
    prompts = [p.text for p in read_prompts(PromptsConfig(builtin="heldout", limit=options.prompts), Path())]
    settings = GenerationSettings(max_new_tokens=options.new_tokens, ignore_eos=True)
    plain = Decoder(target, sampling=SamplingSettings())
    drafting = Decoder(target, drafter, gamma=options.gamma, sampling=SamplingSettings(), strict=True)
    microseconds, c = [], []
    for turn in range(options.repeats + 1):
        base, own = (
            sum((one.generate([prompt], settings, seeds=[turn]).metrics for prompt in prompts), Metrics())
            for one in (plain, drafting)
        )
        if turn:  # the first round is a warm-up
            microseconds.append(1e6 * own.draft_seconds_per_call)
            c.append(own.draft_seconds_per_call / base.verify_seconds_per_call)
    return {"microseconds_per_token": spread(microseconds, 1), "c": spread(c, 5)}


def resident() -> dict[str, int]:
    """Return the bytes of memory that this process holds: its own, and mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sizes = {"private": "RssAnon", "mapped": "RssFile"}
    return {kind: 1024 * int(fields[name].split()[0]) for kind, name in sizes.items()}


if __name__ == "__main__":
    main()
