"""What vLLM does with exported drafters, against what `specdec compare --set deploy=vllm` expects of it.

Runs where vLLM is installed beside specdec, on a CPU with VLLM_CPU_OMP_THREADS_BIND=nobind. The built-in target
decodes held-out prompts greedily in float32, one after another: here by vLLM's rules, then in vLLM with the
exported drafter. The counts do not depend on the load of the machine.

    python benchmarks/vllm_forecast.py --out docs/data/vllm_forecast.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _common import Results

from specdec_core.models import load_model, model_folder
from specdec_core.registry.registry import default_registry
from specdec_core.registry.settings_models import plugin_settings
from specdec_core.serving.vllm_module import export
from specdec_core.study import compare
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_core.study.report.served import served_counts

GAMMA = 4
DRAFTERS: dict[str, Any] = {
    "prompt-copy": {"name": "prompt-copy"},
    "ngram": {"name": "ngram", "text": "builtin:stdlib", "order": 2, "max_bytes": 500_000},
    "suffix": {"name": "suffix"},
    "transformer": {"name": "transformer", "model": "builtin:drafter"},
    "parallel": {"name": "parallel", "model": "builtin:parallel"},
    "eagle3": {"name": "eagle3", "model": "builtin:eagle3"},
}
OWN: dict[str, dict[str, Any]] = {
    "vLLM's ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 16},
    "vLLM's suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 1000},
}
"""Methods of vLLM that copy otherwise than `prompt-copy` and `suffix`; the latter needs arctic-inference."""


def main() -> None:
    """Forecast and serve every drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        print(json.dumps(served(**json.loads(given.serve))))
        return
    settings = {"gamma": GAMMA, "prompts": given.prompts, "tokens": given.tokens, "vllm": version("vllm-cpu")}
    results = Results(given.out, "vllm_forecast", settings)
    prompts = tokens_of_prompts(given.prompts)
    with tempfile.TemporaryDirectory() as folder:
        for name, config in OWN.items():
            if not results.row({"drafter": name}):
                there = run_in_vllm(Path(folder), config, prompts, given.tokens)
                results.add({"drafter": name}, {"forecast": None, "vllm": there[0], "same_texts": None})
        missing = {name: one for name, one in DRAFTERS.items() if not results.row({"drafter": name})}
        expected, texts = forecast(missing, prompts, given.tokens, Path(folder)) if missing else ({}, [])
        for name, drafter in missing.items():
            config = exported(Path(folder) / name, drafter)
            there, found = run_in_vllm(Path(folder) / name, config, prompts, given.tokens)
            row = {"forecast": expected[name], "vllm": there, "same_texts": found == texts}
            results.add({"drafter": name}, row)


def tokens_of_prompts(count: int) -> list[list[int]]:
    """Return the ids of the built-in prompts."""
    tokenizer = load_model("builtin:target", device="cpu", packed=False).tokenizer
    texts = read_prompts(PromptsConfig(builtin="heldout", limit=count), Path())
    return [tokenizer(text.text)["input_ids"] for text in texts]


def forecast(
    drafters: dict[str, Any], prompts: list[list[int]], tokens: int, folder: Path
) -> tuple[dict[str, Any], list[list[int]]]:
    """Return the expected counters of each drafter, and the texts."""
    study = {
        "target": {"model": "builtin:target", "dtype": "float32", "device": "cpu", "packed": False},
        "prompts": {"tokens": prompts},
        "sampling": {"temperature": 0},
        "generation": {"max_new_tokens": tokens, "ignore_eos": True},
        "timing": False,
        "deploy": "vllm",
        "runs": [{"name": name, "drafter": drafter, "gamma": GAMMA} for name, drafter in drafters.items()],
    }
    found = compare(study, folder / "study")
    lines = map(json.loads, (folder / "study/outputs.jsonl").read_text(encoding="utf-8").splitlines())
    texts = [line["tokens"][:tokens] for line in lines if line["run"] == "baseline"]
    counts = {row.name: served_counts(row) for row in found.rows}
    return {name: counters(*vars(one).values()) for name, one in counts.items() if one is not None}, texts


def counters(drafts: float, draft_tokens: float, accepted: Any) -> dict[str, Any]:
    """Return counts as they are stored."""
    return {"drafts": int(drafts), "draft_tokens": int(draft_tokens), "accepted": [int(one) for one in accepted]}


def exported(folder: Path, drafter: dict[str, Any]) -> dict[str, Any]:
    """Export a drafter; return vLLM's speculative config."""
    registry = default_registry()
    made = export(registry, folder, drafter, plugin_settings(registry, "drafter", drafter), GAMMA)
    config: dict[str, Any] = json.loads(shlex.split(made.command)[-1])
    return config


def run_in_vllm(
    folder: Path, config: dict[str, Any], prompts: list[list[int]], tokens: int
) -> tuple[dict[str, Any], list[list[int]]]:
    """Let a new process decode in vLLM; return its counters and its texts."""
    job = json.dumps({"config": config, "prompts": prompts, "tokens": tokens})
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, __file__, "--serve", job]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
    found = json.loads(next(line for line in done.stdout.decode().splitlines() if line.startswith('{"drafts"')))
    return found, found.pop("texts")


def served(config: dict[str, Any], prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Return vLLM's own counters, and its texts."""
    from vllm import LLM, SamplingParams

    config |= {"num_speculative_tokens": GAMMA}
    llm = LLM(
        str(model_folder("builtin:target")),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=1024,
        max_num_seqs=1,
        disable_log_stats=False,
        speculative_config=config,
    )
    how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    made = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], how, use_tqdm=False)
    found = {one.name.removeprefix("vllm:spec_decode_num_"): one for one in llm.get_metrics()}
    per_position = found["accepted_tokens_per_pos"].values
    counts = counters(found["drafts"].value, found["draft_tokens"].value, per_position)
    return counts | {"texts": [list(one.outputs[0].token_ids) for one in made]}


if __name__ == "__main__":
    main()
