"""Measure the shipped pair on the two shipped test sets; print one JSON object.

For each task:

* the loss of both models on the test references, in nats per token;
* BLEU and chrF of translations, ROUGE of summaries, for the greedy output of each model;
* the acceptance rate of the drafter and of the shipped n-gram models: at temperature 1, the mean of
  sum_x min(p(x), q(x)) over texts sampled from the target (Corollary 3.6 of arXiv 2211.17192), and for greedy
  decoding, the share of positions of the target's output where both argmax tokens agree.

The weights are the shipped ones, rounded to half precision; computations are in float32.

Run from the repository root: `python -m recipes.builtin_t5.evaluate --out models/recipes/builtin_t5/RESULTS.json`
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoTokenizer

from recipes.builtin_pair.results import LIBRARIES, Agreement, effort, print_results, sizes
from recipes.builtin_t5.architectures import FOLDERS, load_checkpoint, load_pair
from recipes.builtin_t5.batches import pad
from recipes.builtin_t5.ngram import FOLDER, ORDERS
from recipes.builtin_t5.samples import answer
from recipes.builtin_t5.vocabulary import PAD_ID, VOCABULARY_SIZE, WORK
from specdec_core.study.report.quality import score
from specdec_drafters.ngram.arpa import read_arpa

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

TASKS = {"translation": ("bleu", "chrf"), "summarization": ("rouge1", "rouge2", "rougeL")}
BATCH_SIZE = 32


@dataclass(frozen=True)
class Test:
    """The test set of a task: N prompts and references, and their ids."""

    prompts: list[np.ndarray]
    references: list[str]
    reference_ids: list[np.ndarray]


def open_test(path: Path, tokenizer: PreTrainedTokenizerFast) -> Test:
    """Read a prompt file and encode it."""
    with path.open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    references = [entry["reference"] for entry in entries]
    prompts, ids = (
        [np.array(row) for row in tokenizer(texts, verbose=False)["input_ids"]]
        for texts in ([entry["prompt"] for entry in entries], references)
    )
    return Test(prompts, references, ids)


@torch.inference_mode()
def logits_after(
    model: T5ForConditionalGeneration, prompts: list[np.ndarray], texts: list[np.ndarray]
) -> list[torch.Tensor]:
    """Return the logits [T, V] of a model at the positions of each text, in float32."""
    sources, targets = pad(prompts), pad(texts)
    start = torch.full_like(targets[:, :1], PAD_ID)
    logits = model(
        input_ids=sources,
        attention_mask=(sources != PAD_ID).long(),
        decoder_input_ids=torch.cat([start, targets[:, :-1]], dim=1),
        use_cache=False,
    ).logits
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def in_batches(
    prompts: list[np.ndarray], texts: list[np.ndarray]
) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Split prompts and texts into batches."""
    firsts = range(0, len(prompts), BATCH_SIZE)
    return [(prompts[first : first + BATCH_SIZE], texts[first : first + BATCH_SIZE]) for first in firsts]


def loss_on(model: T5ForConditionalGeneration, test: Test) -> float:
    """Return the mean cross-entropy of the references, in nats per token."""
    total = 0.0
    for prompts, texts in in_batches(test.prompts, test.reference_ids):
        for logits, text in zip(logits_after(model, prompts, texts), texts, strict=True):
            total += functional.cross_entropy(logits, torch.from_numpy(text), reduction="sum").item()
    return total / sum(map(len, test.reference_ids))


def quality_of(texts: list[str], test: Test, task: str) -> dict[str, float]:
    """Return the task's scores of a model's greedy output."""
    scores = score(texts, [[reference] for reference in test.references]).corpus
    return {name: round(scores[name], 2) for name in TASKS[task]}


def ngram_rows(path: Path) -> Callable[[np.ndarray], torch.Tensor]:
    """Return a function from a text to the q [T, V] of an ARPA file at its positions."""
    tables = read_arpa(path, VOCABULARY_SIZE)
    context_length = tables.order - 1

    def rows(text: np.ndarray) -> torch.Tensor:
        prefix = [PAD_ID, *text.tolist()]
        contexts = [prefix[: end + 1][len(prefix[: end + 1]) - context_length :] for end in range(len(text))]
        log_q = np.stack([tables.row(tables.context(context))[:VOCABULARY_SIZE] for context in contexts])
        return torch.from_numpy(log_q).softmax(-1)

    return rows


def acceptance(
    pair: dict[str, T5ForConditionalGeneration],
    test: Test,
    texts: list[np.ndarray],
    ngrams: dict[str, Callable[[np.ndarray], torch.Tensor]],
    *,
    sample: bool,
) -> dict[str, dict[str, float | int]]:
    """Return the acceptance rates of the drafter and of each n-gram model on texts of the target."""
    found = {name: Agreement() for name in ("drafter", *ngrams)}
    for prompts, some in in_batches(test.prompts, texts):
        of_target, of_drafter = (logits_after(pair[role], prompts, some) for role in ("target", "drafter"))
        for p_logits, q_logits, text in zip(of_target, of_drafter, some, strict=True):
            p = p_logits.softmax(-1)
            found["drafter"].add(p, q_logits.softmax(-1), sample=sample)
            for name, rows in ngrams.items():
                found[name].add(p, rows(text), sample=sample)
    return {name: agreement.alpha() for name, agreement in found.items()}


def measure_task(
    task: str, pair: dict[str, T5ForConditionalGeneration], tokenizer: PreTrainedTokenizerFast, arguments: Any
) -> dict[str, Any]:
    """Return the results of one task."""
    test = open_test(arguments.models / f"{task}.jsonl", tokenizer)
    result: dict[str, Any] = {"prompts": len(test.prompts)}
    greedy = {role: answer(model, test.prompts, sample=False, batch=BATCH_SIZE) for role, model in pair.items()}
    for role, model in pair.items():
        texts = tokenizer.batch_decode(greedy[role], skip_special_tokens=True)
        result[role] = {"loss": round(loss_on(model, test), 4), **quality_of(texts, test, task)}
    paths = {name: arguments.ngrams / f"{task}-{name}.arpa" for name in ORDERS}
    paths |= {f"joint {name}": arguments.ngrams / f"joint-{name}.arpa" for name in ORDERS}
    ngrams = {name: ngram_rows(path) for name, path in paths.items() if path.exists()}
    sampled = answer(pair["target"], test.prompts, sample=True, batch=BATCH_SIZE)
    result["alpha_temperature_1"] = acceptance(pair, test, sampled, ngrams, sample=True)
    result["alpha_greedy"] = acceptance(pair, test, greedy["target"], ngrams, sample=False)
    return result


def training_record(role: str, work: Path, tests: dict[str, Test]) -> dict[str, Any]:
    """Return losses before rounding and the training effort from the checkpoint, if it exists.

    The effort includes that of the runs before, `ROLE_first.pt` and `ROLE_second.pt`.
    """
    path = work / f"{role}.pt"
    if not path.exists():
        return {}
    model = load_checkpoint(role, path)
    runs = [run for run in (work / f"{role}_first.pt", work / f"{role}_second.pt", path) if run.exists()]
    return {
        "loss_before_rounding": {task: round(loss_on(model, test), 4) for task, test in tests.items()},
        **effort(*runs),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all results as one object."""
    folders = {role: arguments.models / folder.name for role, folder in FOLDERS.items()}
    pair = load_pair(folders)
    tokenizer = AutoTokenizer.from_pretrained(folders["target"])
    torch.manual_seed(arguments.seed)
    tasks = {task: measure_task(task, pair, tokenizer, arguments) for task in TASKS}
    tests = {task: open_test(arguments.models / f"{task}.jsonl", tokenizer) for task in TASKS}
    models = {
        role: {
            **sizes(model, folders[role]),
            "own_parameters": sum(
                weight.numel() for weight in load_file(folders[role] / "model.safetensors").values()
            ),
            **training_record(role, arguments.work, tests),
        }
        for role, model in pair.items()
    }
    return {**models, **tasks}


def main() -> None:
    """Measure the pair; see `print_results`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ngrams", type=Path, default=FOLDER, help="folder with the ARPA files")
    parser.add_argument("--work", type=Path, default=WORK, help="folder with the checkpoints")
    print_results(parser, measure, (*LIBRARIES, "sacrebleu", "rouge-score"))


if __name__ == "__main__":
    main()
