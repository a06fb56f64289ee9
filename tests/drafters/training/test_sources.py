"""Sources of training: the target's own words, texts, and pairs for encoders."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings
from specdec_core.models import load_model
from specdec_drafters.training import sources as module
from specdec_drafters.training.rows import pad_rows
from specdec_drafters.training.sources import gather, own_samples, read_pairs
from tests.tiny import tiny_model


def test_the_target_writes_exactly_so_many_tokens_and_the_same_again(targets, progress):
    rows = own_samples(targets(), 100, 5, progress, length=16)
    assert sum(len(row) - 1 for row in rows) == 100
    assert all(row[0] == 0 and len(row) <= 16 for row in rows)
    assert progress.stages == [("target writes", 100)]
    advances = progress.advances["target writes"]
    assert advances == sorted(set(advances))
    assert advances[-1] == 100
    assert own_samples(targets(), 100, 5, progress, length=16) == rows
    assert own_samples(targets(), 100, 6, progress, length=16) != rows


def test_rows_do_not_depend_on_how_many_are_written_at_once(targets, progress, monkeypatch):
    rows = own_samples(targets(), 60, 5, progress, length=12)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    assert own_samples(targets(), 60, 5, progress, length=12) == rows


def test_prompts_are_continued_in_turn(targets, progress):
    prompts = [[2, 3, 4], [5, 6]]
    rows = own_samples(targets(), 40, 0, progress, prompts, length=10)
    for number, row in enumerate(rows):
        prompt = prompts[number % 2]
        assert row[: len(prompt)] == prompt
        assert len(prompt) < len(row) <= 10
    assert sum(len(row) - len(prompts[number % 2]) for number, row in enumerate(rows)) == 40


def test_what_is_written_is_what_the_decoder_writes(targets, progress):
    (row,) = own_samples(targets(), 6, 3, progress, [[2, 3]], temperature=0.5, length=8)
    settings = GenerationSettings(max_new_tokens=6, seed=3)
    plain = Decoder(targets(), sampling=SamplingSettings(temperature=0.5)).generate([[2, 3]], settings)
    assert row[2:] == list(plain.sequences[0].tokens)[:6]


def test_an_encoder_decoder_answers_its_sources(targets, progress):
    rows = own_samples(targets("t5"), 30, 0, progress, [[5, 6, 7], [8, 9]], length=8)
    assert all(row[0] == targets("t5").start_id and len(row) <= 8 for row in rows)
    assert sum(len(row) - 1 for row in rows) == 30


@pytest.fixture(scope="module")
def word_target(tmp_path_factory):
    """A tiny target with a tokenizer of the words a to z."""
    words = ["<begin>", "<end>", *map(chr, range(ord("a"), ord("z") + 1)), *(f"w{n}" for n in range(12))]
    inner = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<begin>"))
    inner.pre_tokenizer = Whitespace()
    path = tmp_path_factory.mktemp("words")
    tiny_model("llama").save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<begin>").save_pretrained(path)
    return load_model(path)


def text_of(path, count):
    path.write_text(" ".join(chr(ord("a") + number % 26) for number in range(count)), encoding="utf-8")
    return str(path)


def test_text_is_trained_on_and_its_end_held_out(word_target, config_for, progress, tmp_path):
    text = text_of(tmp_path / "text", 23 * 40)
    material = gather(config_for(text=text, samples=None), word_target, progress)
    (train,) = material.pools
    assert train.tokens.shape == (38, 24)
    assert train.tokens[0, :4].tolist() == [0, 2, 3, 4]
    # What is measured on was written by the target after a piece of the windows that are left.
    held = material.held_out
    assert held.positions == 300
    prompts = {tuple(row[~mask][:6].tolist()) for row, mask in zip(held.tokens, held.mask, strict=True)}
    everything = [0, *(2 + number % 26 for number in range(23 * 40))]
    assert prompts == {tuple(everything[23 * row : 23 * row + 6]) for row in (38, 39)}


def test_text_and_samples_are_two_pools(word_target, config_for, progress, tmp_path):
    text = text_of(tmp_path / "text", 400)
    material = gather(config_for(text=text, samples=200), word_target, progress)
    train, own = material.pools
    assert own.positions == 200
    first = {tuple(row[:6].tolist()) for row in own.tokens}
    assert first <= {tuple(row[:6].tolist()) for row in train.tokens}
    assert not own.mask[:, :6].any()


def test_the_target_writes_at_the_temperature_of_the_training(targets, config_for, progress):
    config = config_for(temperature=0.5, samples=60, held_out=60, seed=7)
    material = gather(config, targets(), progress)
    for rows, seed in ((material.pools[0], 14), (material.held_out, 15)):
        written = own_samples(targets(), 60, seed, progress, temperature=0.5, length=24)
        assert rows.tokens.equal(pad_rows(written, [1] * len(written)).tokens)


def test_trained_and_held_out_samples_differ(materials):
    material = materials()
    pool, held_out = (
        # What ends at once is the same by chance.
        {tuple(row.tolist()) for row, mask in zip(rows.tokens, rows.mask, strict=True) if mask.sum() > 6}
        for rows in (material.pools[0], material.held_out)
    )
    assert len(held_out) > 5
    assert not pool & held_out


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ("a b c", "has 3 tokens, but at least two windows of 24")]
)
def test_too_little_text_is_refused(word_target, config_for, progress, tmp_path, content, message):
    path = tmp_path / "text"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        gather(config_for(text=str(path), samples=None), word_target, progress)


def test_text_needs_a_tokenizer_and_a_target_without_encoder(targets, config_for, progress, tmp_path):
    text = text_of(tmp_path / "text", 100)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        gather(config_for(text=text), targets(), progress)
    with pytest.raises(ConfigError, match="has an encoder: give --sources"):
        gather(config_for(text=text), targets("t5"), progress)


def ids_of(path, sequences):
    path.write_text("".join(" ".join(map(str, one)) + "\n" for one in sequences), encoding="utf-8")
    return path


def test_token_ids_are_trained_on_without_a_tokenizer_and_the_last_held_out(
    targets, config_for, progress, tmp_path
):
    sequences = [[2 + row, *([3] * (row % 5 + 7))] for row in range(20)]
    ids = ids_of(tmp_path / "ids", sequences)
    material = gather(config_for(ids=ids, samples=80), targets(), progress)
    train, own = material.pools
    assert [row[mask | (torch.arange(len(row)) == 0)].tolist() for row, mask in rows_of(train)] == sequences[:19]
    # Each sample continues the first quarter of a sequence, whatever the others' lengths.
    quarters = [one[: len(one) // 4] for one in sequences]
    for rows, expected in ((own, quarters[:19]), (material.held_out, quarters[19:])):
        begun = [row[: int(mask.nonzero()[0])].tolist() for row, mask in rows_of(rows)]
        assert all(one in expected for one in begun)
    assert own.positions == 80


def rows_of(rows):
    return zip(rows.tokens, rows.mask, strict=True)


def test_long_sequences_of_token_ids_are_cut_so_that_each_token_is_predicted_once(
    targets, config_for, progress, tmp_path
):
    long = [number % 11 + 1 for number in range(60)]
    ids = ids_of(tmp_path / "ids", [long, [5, 6], [7], []])
    (train,) = gather(config_for(ids=ids, samples=None, length=24), targets(), progress).pools
    kept = [row[mask].tolist() for row, mask in rows_of(train)]
    assert [token for row in kept for token in row] == long[1:]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([[2, 3]], "has 1 sequence.s. of at least two tokens, but two are needed"),
        ([[2, 3], [4, 900]], "has token 900; .* has 0 to"),
    ],
)
def test_token_ids_that_cannot_be_trained_on(targets, config_for, progress, tmp_path, sequences, message):
    with pytest.raises(ConfigError, match=message):
        gather(config_for(ids=ids_of(tmp_path / "ids", sequences)), targets(), progress)


def test_pairs_and_own_answers(targets, config_for, progress, sources):
    pairs, own = gather(config_for("t5", samples=100), targets("t5"), progress).pools
    assert own.positions == 100
    assert 14 <= len(pairs) <= 16
    assert pairs.tokens.shape[1] == 8
    assert (pairs.tokens[:, 0] == 0).all()
    assert (pairs.tokens[:, 7] == 1).all()
    assert pairs.sources is not None


def test_sources_without_targets_are_answered_once(targets, config_for, progress, tmp_path):
    path = tmp_path / "sources.jsonl"
    path.write_text("\n".join(json.dumps({"source": [number, 3]}) for number in range(2, 8)))
    material = gather(config_for("t5", sources=path, samples=None, length=8), targets("t5"), progress)
    (own,) = material.pools
    assert {int(row[0]) for row in own.sources} <= set(range(2, 8))
    held = {int(row[0]) for row in material.held_out.sources}
    assert len(held) == 1
    assert not held & {int(row[0]) for row in own.sources}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "sources.jsonl:2: expected an object.*: Invalid JSON"),
        ('{"prompt": "x"}', "sources.jsonl:2: expected an object.*: source: Field required"),
        ('{"source": "text"}', '"source" is a text, but .* has no tokenizer'),
    ],
)
def test_lines_that_are_no_pair(targets, tmp_path, line, message):
    path = tmp_path / "sources.jsonl"
    path.write_text('{"source": [2, 3]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_pairs(path, targets("t5"))
