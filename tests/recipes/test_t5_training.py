"""The built-in T5 pair: its tokenizer, batches, shapes, losses, n-grams and measures."""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import string
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from recipes.builtin_pair.architectures import count_parameters
from recipes.builtin_pair.parallel import worker
from recipes.builtin_pair.results import Agreement
from recipes.builtin_t5 import (
    architectures,
    distil,
    evaluate,
    ngram,
    samples,
    train,
    vocabulary,
)
from recipes.builtin_t5.batches import Batch, Encoded, batches_of, collect, epoch_batches, open_split
from recipes.builtin_t5.vocabulary import END_ID, PAD_ID, VOCABULARY_SIZE, Pair
from specdec_drafters.ngram.arpa import read_arpa
from specdec_drafters.ngram.kneser_ney import fit

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


@pytest.fixture
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())


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


@pytest.mark.parametrize(
    "text",
    [
        TEXTS[0],
        "two  spaces, a\ttab\nand a line",
        "never seen: 日本 Ω 🙂 ß",
        "what spells a byte: <0x41>",
        "%(name)s: {count} «files»",
    ],
)
def test_any_text_round_trips_without_unknown_tokens(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[-1] == END_ID
    assert vocabulary.UNKNOWN_ID not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


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


def test_an_epoch_has_every_pair_and_summaries_more_often():
    data = encoded(60, 12)
    batches = epoch_batches(data, np.random.default_rng(0), budget=150, summaries=2.5, multiple=1)
    counts = np.bincount(np.concatenate(batches), minlength=60)
    assert (counts[:48] == 1).all()
    assert counts[48:].sum() == 30
    assert counts[48:].max() == 3


def test_batches_keep_their_budget_and_can_be_shared():
    data = encoded(200, 20)
    lengths = np.stack([np.diff(data.source_starts), np.diff(data.target_starts)], axis=1)
    batches = epoch_batches(data, np.random.default_rng(0), budget=160, summaries=1, multiple=2)
    assert all(len(batch) % 2 == 0 for batch in batches)
    assert all(len(batch) * lengths[batch].max(axis=0).sum() <= 160 for batch in batches)
    assert len(batches) < 60  # and are not emptier than they need be
    whole, *halves = (collect(data, batches[0], *share) for share in ((0, 1), (0, 2), (1, 2)))
    assert {half.tokens for half in halves} == {whole.tokens}
    assert sum(int((half.targets != PAD_ID).sum()) for half in halves) == whole.tokens


def test_a_split_of_answers_is_read_back(tmp_path):
    data = encoded(7, 2)
    for number, indices in enumerate(([0, 2, 4, 6], [1, 3, 5])):
        answers = [np.array([10 + index, END_ID]) for index in indices]
        samples.keep(
            tmp_path / f"sampled.{number}.npz",
            [data.source(index) for index in indices],
            answers,
            data.summaries[indices],
        )
    samples.merge(tmp_path, "sampled", 2)
    joined = open_split(tmp_path, "sampled")
    assert [joined.target(index)[0] - 10 for index in range(7)] == [0, 2, 4, 6, 1, 3, 5]
    assert all(
        (joined.source(position) == data.source(index)).all() for position, index in ((0, 0), (4, 1), (3, 6))
    )
    assert joined.summaries.tolist() == [False, False, False, True, False, False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["sampled.npz"]


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


def test_sizes_are_those_of_the_card():
    models = {role: architectures.new_model(role, 0) for role in architectures.SHAPES}
    target, drafter = (count_parameters(model) for model in models.values())
    assert 10e6 < target < 12e6
    decoders = [count_parameters(model.decoder.block) for model in models.values()]
    assert drafter == target - decoders[0] + decoders[1]
    assert decoders[1] < 0.21 * decoders[0]


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_no_decoder_is_deeper_than_its_encoder_and_generate_works(small, role):
    config = small[role].config
    assert config.num_decoder_layers <= config.num_layers
    rows = small[role].generate(torch.tensor([[5, 6, 1]]), max_new_tokens=3, do_sample=False)
    assert rows[0, 0] == PAD_ID


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


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_an_exported_folder_is_the_model_in_half_precision(small, tokenizer, tmp_path, role):
    model = small[role]
    folder = tmp_path / role
    architectures.export_role(role, model, tokenizer, folder)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[7, 8, 9, 1]])
    rounded = copy.deepcopy(model).half().float()
    assert torch.equal(*(some(ids, decoder_input_ids=ids).logits for some in (rounded, loaded)))
    assert loaded.lm_head.weight is not loaded.shared.weight
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.half().float())
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    generation = loaded.generation_config
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 1, 0)
    assert model.lm_head.weight.dtype == torch.float32  # what was exported is not changed


@pytest.mark.usefixtures("_full_precision")
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_logits_are_the_models_own_where_there_is_no_padding(small, role):
    model, data = small[role], encoded(6)
    batch = collect(data, np.arange(6))
    labels = batch.targets.masked_fill(batch.targets == PAD_ID, -100)
    mask = (batch.sources != PAD_ID).long()
    with torch.no_grad():
        own = model(input_ids=batch.sources, attention_mask=mask, labels=labels)
        logits = train.logits_of(model, batch)
    assert torch.allclose(logits, own.logits[batch.targets != PAD_ID], atol=1e-4)
    with torch.no_grad():
        assert train.losses_of(model, batch).mean().item() == pytest.approx(own.loss.item(), abs=1e-4)
    assert len(logits) == batch.tokens


@pytest.mark.usefixtures("_full_precision")
def test_padding_changes_no_loss(small):
    data = encoded(8, 2)
    with torch.no_grad():
        together = train.losses_of(small["target"], collect(data, np.arange(8)))
        alone = [train.losses_of(small["target"], collect(data, np.array([index]))) for index in range(8)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)


def test_each_weight_has_one_optimizer_and_queries_take_smaller_steps(small):
    model = small["target"]
    optimizers = train.make_optimizers(model, 1e-3, 7.0)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    factors = {id(weight): group.get("factor", 1.0) for group in groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(factors) == len(list(model.parameters()))
    for name, weight in model.named_parameters():
        wanted = 8**-0.5 if name.endswith(".q.weight") else 7.0 if name == "shared.weight" else 1.0
        assert factors[id(weight)] == wanted, name
    muon = {id(weight) for group in optimizers[0].param_groups for weight in group["params"]}
    outside = {name for name, weight in model.named_parameters() if weight.dim() > 1 and id(weight) not in muon}
    assert {name.split(".")[-2] for name in outside} == {"shared", "lm_head", "relative_attention_bias"}


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
    run_alone(distil.distil, arguments_for(tmp_path, target=None), tmp_path, monkeypatch)
    assert "drawing from: train, greedy" in capsys.readouterr().out
    state = torch.load(tmp_path / "drafter.pt", weights_only=True)
    given = small["target"].state_dict()
    changed = {name for name, weight in state["model"].items() if not torch.equal(given[name], weight)}
    kinds = {name.partition(".")[0] for name in changed}
    assert kinds == {"decoder", "lm_head"}, "the encoder and its embedding stay the target's"
    assert len(state["model"]) < len(given)


@pytest.mark.usefixtures("_small_shapes")
def test_training_starts_from_given_weights_and_keeps_dropout_out_of_the_shipped_model(tmp_path, monkeypatch):
    for name in ("train", "valid"):
        write(tmp_path, name, encoded(30))
    begun = architectures.new_model("drafter", seed=5)
    torch.save({"model": begun.state_dict()}, tmp_path / "begun.pt")
    arguments = arguments_for(tmp_path, start=tmp_path / "begun.pt", dropout=0.3, learning_rate=0.0)
    run_alone(train.train, arguments, tmp_path, monkeypatch)
    after = architectures.load_checkpoint("drafter", tmp_path / "drafter.pt")
    assert all(torch.equal(weight, after.state_dict()[name]) for name, weight in begun.state_dict().items())
    assert after.config.dropout_rate == 0.0


def test_the_loss_on_distributions_known_by_hand(monkeypatch):
    p, q = torch.tensor([[0.5, 0.25, 0.25], [1 / 3] * 3]), torch.tensor([[0.25, 0.5, 0.25], [1 / 3] * 3])
    logits = {"target": p.log() + 3.0, "drafter": q.log() - 1.0}
    monkeypatch.setattr(distil, "encoder_states", lambda model, _: model)
    monkeypatch.setattr(distil, "logits_of", lambda model, _, encoded: logits[model] if encoded == "target" else 0)
    batch = Batch(torch.tensor([[5]]), torch.tensor([[2, 1]]), 2)
    kl, tv, hard = 0.25 * np.log(2), 0.25, np.log(4) + np.log(3)
    for elapsed, share in ((0.0, 0.0), (0.2, 0.3), (1.0, 0.9)):
        loss = distil.Distillation("target", "drafter")
        found = loss(train.Draw(encoded(), np.arange(1), batch), elapsed)
        assert found.item() == pytest.approx((1 - share) * kl + 4 * share * tv + 0.1 * hard, abs=1e-6)
        assert loss.alpha == pytest.approx(1 - tv / 2, abs=1e-6), "a mean over the positions"


def test_a_pruned_bigram_sums_to_one_and_is_read_back_as_written(tmp_path):
    texts = [np.concatenate([ngram.START, row]) for row in np.random.default_rng(0).integers(3, 20, (80, 9))]
    texts = [text.astype(np.int32) for text in texts]
    model = fit(texts, VOCABULARY_SIZE, 2)
    counts = ngram.occurrences(model, texts)
    assert counts.sum() >= 80 * 9
    pruned = ngram.prune(model, counts >= 3)
    assert 0 < pruned.ngram_counts[1] < model.ngram_counts[1]
    ngram.write_arpa(tmp_path / "a.arpa", pruned.levels, pruned.known)
    ngram.shorten(tmp_path / "a.arpa")
    tables = read_arpa(tmp_path / "a.arpa", VOCABULARY_SIZE)
    listed = np.flatnonzero(pruned.known)
    listed = listed[listed != VOCABULARY_SIZE]  # `<s>` is given, not foretold
    for context in ((PAD_ID,), (3,), (19,)):
        row = tables.row(tables.context(list(context)))
        assert np.exp(row[listed].astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-3)
        assert row[4] == pytest.approx(pruned.tables().row(context)[4], abs=1e-3)


def test_a_bigram_knows_how_answers_begin_and_a_unigram_does_not_draft_it():
    data = encoded(30, 10)
    unigrams, bigrams = (ngram.answers(data, True, order) for order in (1, 2))
    assert len(unigrams) == len(bigrams) == 10
    assert all(text[0] == PAD_ID for text in bigrams)
    assert all(PAD_ID not in text for text in unigrams)
    assert len(ngram.answers(data, None, 1)) == 30


def test_alpha_is_the_overlap_at_temperature_1_and_the_agreement_when_greedy():
    p, q = torch.tensor([[0.6, 0.4], [0.5, 0.5]]), torch.tensor([[0.3, 0.7], [0.9, 0.1]])
    overlap, agreement = Agreement(), Agreement()
    for some in (slice(0, 2), slice(0, 1)):
        overlap.add(p[some], q[some], sample=True)
        agreement.add(p[some], q[some], sample=False)
    assert overlap.alpha()["alpha"] == pytest.approx((0.7 + 0.6 + 0.7) / 3, abs=1e-4)
    assert agreement.alpha()["alpha"] == pytest.approx(1 / 3, abs=1e-4)
    assert overlap.alpha()["tokens"] == 3


def test_the_q_of_an_ngram_file_follows_the_text(tmp_path):
    texts = [np.array([PAD_ID, 5, 6, END_ID], dtype=np.int32)] * 4 + [np.array([PAD_ID, 7, END_ID], np.int32)]
    ngram.write(tmp_path / "a.arpa", texts, 2)
    q = evaluate.ngram_rows(tmp_path / "a.arpa")(np.array([5, 6, END_ID]))
    assert q.shape == (3, VOCABULARY_SIZE)
    assert q.sum(-1).tolist() == pytest.approx([1, 1, 1], abs=1e-4)
    assert q.argmax(-1).tolist() == [5, 6, END_ID]
