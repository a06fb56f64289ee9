"""The built-in T5 pair: its tokenizer, batches, shapes, losses, n-grams and measures."""

import argparse
import copy
import itertools
import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

from recipes.builtin_pair.parallel import worker
from recipes.builtin_t5 import architectures, distil, train, vocabulary
from recipes.builtin_t5.batches import Encoded, batches_of, open_split
from recipes.builtin_t5.vocabulary import END_ID, PAD_ID, VOCABULARY_SIZE, Pair

TEXTS = [
    f"{verb} the {thing} before the {other} is {state}, and the {thing} of the {other} will be {state}."
    for verb, thing, other, state in itertools.product(
        ("Open", "Close", "Remove", "Rename"),
        ("file", "folder", "connection", "window", "setting"),
        ("server", "user", "database", "program"),
        ("ready", "deleted", "unknown", "größer"),
    )
]
# A piece is considered if it occurs in two words; all of ASCII must be known.
TEXTS += ["these folders", "file-folder", string.printable.strip()]


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary.train_tokenizer(TEXTS, size=390, min_count=1)


def encoded(count: int = 60, summaries: int = 12, seed: int = 0) -> Encoded:
    """Return pairs of random ids and lengths, the last of them summaries with long sources."""
    generator = np.random.default_rng(seed)
    is_summary = np.arange(count) >= count - summaries
    lengths = [generator.integers(3, 12, count) + 20 * is_summary, generator.integers(2, 9, count)]
    ids = [generator.integers(3, VOCABULARY_SIZE, sum(some)).astype(np.uint16) for some in lengths]
    starts = [np.concatenate([[0], np.cumsum(some)]) for some in lengths]
    for some, ends in zip(ids, starts, strict=True):
        some[ends[1:] - 1] = END_ID
    return Encoded(ids[0], starts[0], ids[1], starts[1], is_summary)


def write(work: Path, split: str, data: Encoded) -> None:
    np.savez(work / f"{split}.npz", **vars(data))


def test_the_ids_of_t5s_special_tokens(tokenizer):
    assert vocabulary.UNKNOWN_ID + 1 + 256 < len(tokenizer) <= 400
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer(["a", "the file and the folder"], padding=True)["input_ids"][0][-1] == PAD_ID
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"}  # T5 takes no others


def test_pairs_are_encoded_and_long_ones_left_out(tokenizer, tmp_path):
    long = "größer " * (vocabulary.MAX_TARGET + 1)
    pairs = [
        Pair("translate", "the file", "folder", "train"),
        Pair("translate", "the file", long, "train"),
        Pair("summarize", "the window is", "ready", "train"),
    ]
    arrays = vocabulary.encode(tokenizer, pairs)
    np.savez(tmp_path / "train.npz", **arrays)
    data = open_split(tmp_path, "train")
    assert arrays["left_out"] == 1
    assert data.summaries.tolist() == [False, True]
    assert [tokenizer.decode(data.source(index), skip_special_tokens=True) for index in range(2)] == [
        "the file",
        "the window is",
    ]
    assert data.target(1).tolist() == tokenizer.encode("ready")


SMALL = {
    role: {**shape, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 24}
    for role, shape in architectures.SHAPES.items()
}


@pytest.fixture(scope="module")
def small():
    """Return a tiny model of each kind, built by the recipe's own code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architectures, "SHAPES", SMALL)
        models = {role: architectures.new_model(role, 3).eval() for role in SMALL}
    for model in models.values():
        with torch.no_grad():  # as if trained: no two weights of one scale
            for weight in model.parameters():
                weight.mul_(1.3)
    return models


@pytest.fixture
def _small_shapes(monkeypatch):
    monkeypatch.setattr(architectures, "SHAPES", SMALL)


@pytest.mark.usefixtures("_small_shapes")
def test_a_drafter_begins_as_the_target_with_one_decoder_layer(small):
    target = copy.deepcopy(small["target"])
    drafter = architectures.shortened(target).eval()
    target.decoder.block = target.decoder.block[:1]
    ids = torch.tensor([[5, 6, 1]])
    with torch.no_grad():
        found, expected = (
            model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits for model in (drafter, target)
        )
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("_small_shapes")
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_an_exported_folder_is_the_model_in_half_precision(small, tokenizer, tmp_path, role):
    models = {"target": small["target"], "drafter": architectures.shortened(small["target"]).eval()}
    models["drafter"].decoder.final_layer_norm.weight.data.mul_(1.1)
    for name, one in models.items():
        architectures.export_role(name, one, tokenizer, tmp_path / name)
    model, folder = models[role], tmp_path / role
    loaded = architectures.load_pair({name: tmp_path / name for name in models})[role]
    ids = torch.tensor([[7, 8, 9, 1]])
    rounded = copy.deepcopy(model).half().float()
    assert torch.equal(*(some(ids, decoder_input_ids=ids).logits for some in (rounded, loaded)))
    assert loaded.lm_head.weight is not loaded.shared.weight
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.half().float())
    names = load_file(folder / "model.safetensors")
    assert all(name.startswith(("decoder.block.0.", "decoder.final")) for name in names) is (role == "drafter")
    assert (folder / "tokenizer.json").exists() is (role == "target")
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 1, 0)
    assert model.lm_head.weight.dtype == torch.float32  # what was exported is not changed


def arguments_for(work: Path, **changed) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    arguments = parser.parse_args(["--steps", "1", "--work", str(work), "--batch", "60", "--processes", "1"])
    return argparse.Namespace(**{**vars(arguments), "model": "drafter", **changed})


def run_alone(work, arguments, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    worker(0, work, arguments, f"file://{tmp_path / 'meeting-point'}")
    (tmp_path / "meeting-point").unlink(missing_ok=True)


@pytest.mark.usefixtures("_small_shapes")
def test_training_goes_on_from_its_checkpoint_with_the_next_batch(tmp_path, monkeypatch):
    data = encoded(40)
    write(tmp_path, "train", data)
    write(tmp_path, "valid", data)
    lengths = np.diff(data.source_starts) + np.diff(data.target_starts)
    steps = list(itertools.islice(batches_of(data, 0, 60, 1.0, 1), 2))
    tokens = [int(lengths[batch].sum()) for batch in steps]
    run_alone(train.train, arguments_for(tmp_path), tmp_path, monkeypatch)
    first = torch.load(tmp_path / "drafter.pt", weights_only=True)["progress"]
    assert (first["step"], first["tokens"]) == (1, tokens[0])
    more = arguments_for(tmp_path, resume=True, steps=2)
    run_alone(train.train, more, tmp_path, monkeypatch)
    second = torch.load(tmp_path / "drafter.pt", weights_only=True)["progress"]
    assert (second["step"], second["tokens"]) == (2, sum(tokens))
    assert second["seconds"] > first["seconds"]


@pytest.mark.usefixtures("_small_shapes")
def test_a_drafter_is_distilled_from_a_targets_checkpoint(small, tmp_path, monkeypatch, capsys):
    for name in ("train", "valid", "greedy"):
        write(tmp_path, name, encoded(30))
    torch.save({"model": small["target"].state_dict()}, tmp_path / "target.pt")
    run_alone(distil.distil, arguments_for(tmp_path, target=None, train_head=False), tmp_path, monkeypatch)
    assert "drawing from: train, greedy" in capsys.readouterr().out
    state = torch.load(tmp_path / "drafter.pt", weights_only=True)
    given = small["target"].state_dict()
    changed = {name for name, weight in state["model"].items() if not torch.equal(given[name], weight)}
    kinds = {name.partition(".")[0] for name in changed}
    assert kinds == {"decoder"}, "encoder and embeddings stay the target's"
    assert len(state["model"]) < len(given)
