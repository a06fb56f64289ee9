"""Studies of conversations: each turn follows the answers of the run that decodes it."""

import json
import shutil

import pytest
import torch

from specdec_core import compare, load_model
from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError
from specdec_core.interface.errors import OutOfMemoryError
from specdec_core.offline.record.recording import RecordOptions, record_study
from specdec_core.offline.replay.comparison import replay
from specdec_core.sampling.generators import row_seed
from specdec_core.study import load_study
from specdec_core.study.memory import memory_needs
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.decoding.letters import PLAIN, VOCAB, library_answers, tiny_tokenizer
from tests.offline.record.watcher import Watcher
from tests.tiny import tiny_model

TURNS = (("abcab", "b"), ("acca",), ("cbbc", "aa", "b"))
LENGTH = 9
CONTEXT = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a model over letters, whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = PLAIN
    tokenizer.save_pretrained(folder)
    tiny_model("qwen3", VOCAB, 4).save_pretrained(folder)
    return folder


@pytest.fixture
def study_of(model, tmp_path):
    """Returns a study of the conversations, with some settings replaced."""
    lines = [json.dumps({"question_id": n, "turns": turns}) for n, turns in enumerate(TURNS, start=80)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))

    def made(**changes):
        return {
            "target": str(model),
            "prompts": {"file": str(tmp_path / "p.jsonl")},
            "sampling": {"temperature": 0},
            "generation": {"max_new_tokens": LENGTH, "seed": 3},
            "repeats": 1,
            "runs": [{"name": "lookup", "drafter": "prompt-lookup", "gamma": 3}],
            **changes,
        }

    return made


def outputs(folder):
    return [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]


def answers_of(target, conversations=TURNS):
    return [one for turns in conversations for one in library_answers(target, turns, LENGTH)[0]]


def ids_of(target, messages):
    return target.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_each_turn_has_an_output(study_of, model, tmp_path):
    compare(study_of(batch_size=2), tmp_path / "out", progress=False)
    written = outputs(tmp_path / "out")
    expected = answers_of(load_model(model))
    assert [one["tokens"] for one in written] == expected * 2
    assert all(one["same_as_baseline"] for one in written)
    names = [(one["run"], one["prompt"], one["turn"]) for one in written]
    flat = [("80", 1), ("80 turn 2", 2), ("81", 1), ("82", 1), ("82 turn 2", 2), ("82 turn 3", 3)]
    assert names == [(run, *turn) for run in ("baseline", "lookup") for turn in flat]


@pytest.fixture
def outgrowing(study_of, model, tmp_path):
    """Returns a study with conversations that outgrow the target's context: their second turn, and none."""
    small = tmp_path / "small"
    shutil.copytree(model, small)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    lines = [{"question_id": n, "turns": turns, "kind": "x"} for n, turns in enumerate(TURNS[::-1])]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def made(**changes):
        settings = study_of(target=str(small), **changes)
        settings["prompts"]["group"] = "kind"
        return settings

    return made


def test_a_conversation_that_outgrows_the_context_ends_and_the_others_go_on(outgrowing, model, tmp_path):
    said, settings = TURNS[::-1], outgrowing(batch_size=3)
    found = compare(settings, tmp_path / "out", progress=False)
    assert not found.failures
    assert found.rows[0].groups[-1].prompts == 3
    written = outputs(tmp_path / "out")
    # The second turn of the first conversation fills the context, that of the last leaves room for 3 tokens.
    first, alone, last, last_2 = (answers_of(load_model(model), said)[n] for n in (0, 3, 4, 5))
    assert [one["tokens"] for one in written] == [first, [], [], alone, last, last_2[:3]] * 2
    reasons = ["length", "context", "context", "length", "length", "context"]
    assert [one["finish_reason"] for one in written] == reasons * 2
    for row in found.rows:
        assert any("2 turns were not decoded" in note for note in row.notes)
        assert row.percentiles["seconds"]["min"] > 0
    assert "no longer fits" in str(found)
    again = compare(settings, tmp_path / "out", progress=False)  # from the journal
    assert outputs(tmp_path / "out") == written
    assert again.rows[1].notes == found.rows[1].notes


def test_a_record_of_it_has_the_turns_that_were_decoded(outgrowing, tmp_path):
    settings = outgrowing()
    live = compare(settings, tmp_path / "live", progress=False)
    expected = outputs(tmp_path / "live")
    record = record_study(load_study(settings), tmp_path / "record", Watcher(), RecordOptions(rows=3))
    (part,) = record.parts
    decoded = [(n, one["tokens"], one["finish_reason"]) for n, one in enumerate(expected[:6]) if one["tokens"]]
    assert [(text.number, text.tokens.tolist(), text.finish_reason) for text in part] == decoded
    assert (len(part), part.outgrown, part.finished) == (4, 2, True)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "record").rglob("*.safetensors")}
    record_study(load_study(settings), tmp_path / "record", Watcher(), RecordOptions(rows=3))
    assert {file: file.stat().st_mtime_ns for file in before} == before

    replayed = replay(record, load_study(settings), output=tmp_path / "replayed", progress=False)
    again = outputs(tmp_path / "replayed")
    assert [(one["prompt"], one["tokens"], one["finish_reason"]) for one in again] == [
        (one["prompt"], one["tokens"], one["finish_reason"]) for one in expected[:6]
    ]
    for row, measured in zip(replayed.rows, live.rows, strict=True):
        assert row.tokens == measured.tokens
        assert row.block_efficiency == pytest.approx(measured.block_efficiency)
        assert [one.prompts for one in row.groups] == [one.prompts for one in measured.groups]
    assert any("2 turns were not decoded" in note for note in replayed.rows[0].notes)
    # Turns of a conversation resemble each other: intervals are over conversations.
    assert (replayed.rows[1].replayed.texts, replayed.rows[1].replayed.prompts) == (4, 3)
    by_name = replay(record, "prompt-lookup", gammas=[3], progress=False)
    assert by_name.rows[1].groups == replayed.rows[1].groups


def test_sampled_turns_follow_the_answers_of_their_run(study_of, model, tmp_path):
    compare(study_of(sampling={"temperature": 1.5}), tmp_path / "out", progress=False)
    written = outputs(tmp_path / "out")
    target = load_model(model)
    decoders = {
        "baseline": Decoder(target, temperature=1.5),
        "lookup": Decoder(target, "prompt-lookup", gamma=3, temperature=1.5),
    }
    messages = []
    for number, one in enumerate(written):
        text = [text for turns in TURNS for text in turns][number % 6]
        messages = (
            [*messages, {"role": "user", "content": text}]
            if one["turn"] > 1
            else [{"role": "user", "content": text}]
        )
        seeds = [row_seed(3, number % 6)]
        alone = decoders[one["run"]].generate([ids_of(target, messages)], max_new_tokens=LENGTH, seeds=seeds)
        assert list(alone.tokens) == one["tokens"]
        messages.append({"role": "assistant", "content": one["text"]})
    assert len({tuple(one["tokens"]) for one in written}) > 8


def test_batches_that_do_not_fit_are_halved_from_their_first_turn(study_of, tmp_path, monkeypatch):
    compare(study_of(), tmp_path / "alone", progress=False)
    real = Decoder.stream

    def short(self, prompts, *rest, **keywords):
        if len(prompts) > 1 and max(map(len, prompts)) > 18:
            raise OutOfMemoryError("the memory is full.")
        return (yield from real(self, prompts, *rest, **keywords))

    monkeypatch.setattr(Decoder, "stream", short)
    found = compare(study_of(batch_size=3, auto_find_batch_size=True), tmp_path / "halved", progress=False)
    assert [one["tokens"] for one in outputs(tmp_path / "halved")] == [
        one["tokens"] for one in outputs(tmp_path / "alone")
    ]
    assert found.rows[0].tokens == sum(len(one["tokens"]) for one in outputs(tmp_path / "alone")[:6])


def test_a_record_of_sampled_turns_has_the_probabilities_of_their_tokens(outgrowing, tmp_path):
    settings = outgrowing(sampling={"temperature": 1.5})
    compare(settings, tmp_path / "live", progress=False)
    record = record_study(load_study(settings), tmp_path / "record", Watcher(), RecordOptions(rows=3))
    target, decoded = load_model(settings["target"]), [one for one in outputs(tmp_path / "live") if one["tokens"]]
    for text, live in zip(record.parts[0], decoded, strict=False):
        assert text.tokens.tolist() == live["tokens"]
        logits = uncached_logits(target, [[*text.prompt, *live["tokens"]]])[0, len(text.prompt) - 1 : -1]
        p = (logits / 1.5).softmax(dim=-1).gather(1, torch.tensor(live["tokens"])[:, None])[:, 0]
        assert text.probabilities == pytest.approx(p.numpy(), abs=1e-5)


def test_several_samples_of_a_conversation_are_refused(study_of, tmp_path):
    study = load_study(study_of(sampling={"temperature": 1}))
    with pytest.raises(ConfigError, match="samples is 2, and a later turn of a conversation follows one answer"):
        record_study(study, tmp_path / "record", Watcher(), RecordOptions(samples=2))


def test_the_memory_of_a_conversation_holds_its_answers(study_of, model):
    (need, _) = memory_needs(load_study(study_of()))
    messages = [{"role": "user", "content": text} for text in TURNS[2]]
    for index in (1, 3):
        messages.insert(index, {"role": "assistant", "content": ""})
    prompt = len(ids_of(load_model(model), messages)) + 2 * LENGTH
    assert need.tokens == prompt + LENGTH + 1
