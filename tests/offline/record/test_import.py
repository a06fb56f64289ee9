"""Texts that another program generated become a record, and what cannot be used is refused with its line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import PromptError
from specdec_core.interface.settings import SamplingSettings, TargetConfig
from specdec_core.models import load_model, model_folder
from specdec_core.offline.record import read_record
from specdec_core.offline.record.decode import TextJob, record_texts
from specdec_core.offline.record.import_log import ImportOptions, TokenTexts, import_record
from specdec_core.offline.record.recorded_target import target_info
from specdec_core.offline.record.tasks import part_for
from specdec_core.offline.replay import replay
from specdec_core.study import load_study
from tests.offline.record.watcher import Watcher

SAMPLED = SamplingSettings()
GREEDY = SamplingSettings(temperature=0)


@pytest.fixture
def read(tmp_path, model_folder):
    """Return a function that imports lines, whose target has the words a to h with ids 0 to 7, and V = 9."""

    def run(*lines, target=None, sampling=SAMPLED, fresh=True, **options):
        log = tmp_path / "log.jsonl"
        log.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
        config = TargetConfig(model=str(target or model_folder))
        made = ImportOptions(config, sampling, **options)
        return import_record(log, tmp_path / "r", Watcher(), made, fresh=fresh)

    return run


def one(record):
    (text,) = record.parts[0]
    return text


PLAIN = {"prompt": [0, 2], "tokens": [3, 4, 8], "logprobs": [-0.5, -1.25, 0], "finish_reason": "length"}


def test_our_own_form(read):
    other = {**PLAIN, "prompt": "b a"}
    record = read(PLAIN, "", other, PLAIN)
    assert [(text.number, text.sample, text.prompt) for text in record.parts[0]] == [
        (0, 0, (0, 2)),
        (0, 1, (0, 2)),
        (1, 0, (1, 0)),
    ]
    text = next(iter(record.parts[0]))
    assert text.tokens.tolist() == [3, 4, 8]
    assert text.probabilities == pytest.approx([math.exp(-0.5), math.exp(-1.25), 1])
    assert text.finish_reason == "length"
    header = record.header
    assert (header.vocab_size, header.fingerprint, header.max_length) == (9, None, 256)
    assert header.source.endswith("log.jsonl")
    assert header.parts[0].generation.max_new_tokens == 3
    assert target_info(record).tokenizer("h")["input_ids"] == [7]


def test_lines_name_the_groups_of_their_prompts(read):
    code, prose = {**PLAIN, "group": ["code", "easy"]}, {**PLAIN, "prompt": [1], "group": ["prose", "easy"]}
    (part,) = read(code, prose, code).parts
    assert [(one.id, one.group) for one in part.columns] == [("1", ("code", "easy")), ("2", ("prose", "easy"))]
    wrapped = {
        "request": {"prompt": [1]},
        "response": {"choices": [{"token_ids": [3], "finish_reason": "length"}]},
    }
    (part,) = read(
        {**PLAIN, "category": "code"}, {**wrapped, "category": ""}, sampling=SamplingSettings(temperature=0)
    ).parts
    assert [one.group for one in part.columns] == [("code",), ("(none)",)]
    assert not read(PLAIN).parts[0].columns


@pytest.mark.parametrize(("group", "title"), [("code", "group"), (["code", "easy"], "group 1 and group 2")])
def test_a_replay_reports_the_groups_of_an_import(read, group, title):
    record = read({**PLAIN, "group": group}, sampling=SamplingSettings(temperature=0))
    found = replay(record, {"name": "random"}, gammas=[2], progress=False)
    assert [one.prompts for one in found.rows[1].groups] == [1]
    assert f"Block efficiency by {title}" in str(found)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([], "'group' has 0 values; expected one or two"),
        (["a", "b", "c"], "'group' has 3 values; expected one or two"),
        ({"a": 1}, "column 'group' .* must hold a text or a number"),
        (["code", "easy"], "2 values of 'group', and an earlier one 1"),
        ("prose", "the group prose, and an earlier line with this prompt the group code"),
    ],
)
def test_groups_that_contradict_each_other_are_refused(read, group, message):
    with pytest.raises(ConfigError, match=rf"log\.jsonl:2: .*{message}"):
        read({**PLAIN, "group": "code"}, {**PLAIN, "group": group})


def completion(tokens, logprobs, **more):
    return {
        "prompt": "a c",
        "choices": [
            {"finish_reason": "length", "logprobs": {"tokens": tokens, "token_logprobs": logprobs}, **more}
        ],
    }


def chat(content, **more):
    entries = [{"token": token, "logprob": value, "bytes": data} for token, value, data in content]
    return {
        "messages": [{"role": "user", "content": "a"}],
        "choices": [{"logprobs": {"content": entries}, **more}],
    }


FORMS = {
    "completions with texts": completion(["d", "e", "?"], [-0.5, -1.25, 0.0]),
    "completions with token_id": completion(["token_id:3", "token_id:4", "token_id:8"], [-0.5, -1.25, 0.0]),
    "completions with token_ids": completion(["", "", ""], [-0.5, -1.25, 0.0], token_ids=[3, 4, 8]),
    "a request and its response": {
        "request": {"prompt": "a c", "temperature": 1, "top_p": 1.0, "presence_penalty": 0},
        "response": completion(["d", "e", "?"], [-0.5, -1.25, 0.0]),
    },
    "a batch of the API": {
        "prompt": "a c",
        "response": {"status_code": 200, "body": completion(["d", "e", "?"], [-0.5, -1.25, 0.0])},
    },
    "chat": {
        **chat([("d", -0.5, None), ("e", -1.25, [101]), ("token_id:8", 0.0, None)], finish_reason="length"),
        "prompt_token_ids": [0, 2],
    },
    "vLLM's RequestOutput": {
        "prompt": "whatever",
        "prompt_token_ids": [0, 2],
        "outputs": [
            {
                "token_ids": [3, 4, 8],
                "finish_reason": "length",
                "logprobs": [
                    {"3": {"logprob": -0.5, "rank": 1, "decoded_token": "d"}, "1": {"logprob": -9, "rank": 2}},
                    {"4": {"logprob": -1.25}},
                    {"8": 0.0},
                ],
            }
        ],
    },
}


@pytest.mark.parametrize("line", FORMS.values(), ids=FORMS)
def test_the_forms_of_other_programs(read, line):
    text = one(read(line))
    assert text.prompt == (0, 2)
    assert text.tokens.tolist() == [3, 4, 8]
    assert text.probabilities == pytest.approx([math.exp(-0.5), math.exp(-1.25), 1])
    assert text.finish_reason == "length"


def test_several_choices_are_samples_of_a_prompt(read):
    line = completion(["d"], [-0.5])
    line["choices"] *= 3
    record = read(line)
    assert [(text.number, text.sample) for text in record.parts[0]] == [(0, 0), (0, 1), (0, 2)]


def test_a_chat_is_rendered_by_the_template(read):
    template = "{% for message in messages %}b {{ message.content }} {% endfor %}c"
    assert one(read(chat([("d", -1, None)]), chat_template=template)).prompt == (1, 0, 2)
    parts = {**chat([("d", -1, None)]), "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert one(read(parts, chat_template=template)).prompt == (1, 0, 2)
    parts["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(PromptError, match=r"log\.jsonl:1': part 1 of .* given 'image_url': prompts are text"):
        read(parts, chat_template=template)
    with pytest.raises(PromptError, match=r"log\.jsonl:1' is a chat, but the tokenizer of .* no chat template"):
        read(chat([("d", -1, None)]))


def test_finish_reasons(read, tmp_path):
    lines = [
        {**PLAIN, "tokens": [3, 1], "logprobs": [-1, -1], "finish_reason": "stop"},
        {**PLAIN, "tokens": [3, 4], "logprobs": [-1, -1], "finish_reason": "stop"},
        {**PLAIN, "finish_reason": "length"},
        {**PLAIN, "tokens": [3, 4], "logprobs": [-1, -1], "finish_reason": "length"},
        {**PLAIN, "tokens": [1], "logprobs": [-1], "finish_reason": None},
        {"prompt": [0], "tokens": [3, 4, 5], "logprobs": [-1, -1, -1]},
    ]
    reasons = [text.finish_reason for text in read(*lines).parts[0]]
    assert reasons == ["eos", "stop", "length", "context", "eos", "length"]
    longer = read(*lines, max_new_tokens=5).parts[0]
    assert [text.finish_reason for text in longer] == ["eos", "stop", "context", "context", "eos", "context"]
    ignoring = next(iter(read(lines[0], ignore_eos=True).parts[0]))
    assert ignoring.finish_reason == "stop"


BAD = {
    "not json": ("{", "this is not JSON"),
    "no object": ("[1]", "expected a JSON object"),
    "no form": ({"text": "x"}, "neither 'tokens' nor 'choices' nor 'outputs'; given 'text'"),
    "no prompt": ({"tokens": [3], "logprobs": [-1]}, "the prompt is missing: add 'prompt'"),
    "an empty prompt": ({**PLAIN, "prompt": []}, "prompt is empty"),
    "an unknown id": ({**PLAIN, "tokens": [3, 4, 9]}, "9 is not a token id of .*, which has 0 to 8"),
    "an unknown id of a prompt": ({**PLAIN, "prompt": [99]}, "99 is not a token id"),
    "a negative id": ({**PLAIN, "tokens": [3, 4, -1]}, "tokens holds -1; expected token ids"),
    "no tokens": ({**PLAIN, "tokens": [], "logprobs": []}, "this text has no tokens"),
    "above 1": ({**PLAIN, "logprobs": [-1, 0.01, -1]}, "0.01 is not a log-probability"),
    "probabilities": ({**PLAIN, "logprobs": [0.5, 0.2, 0.9]}, "0.5 is not a log-probability"),
    "NaN": ('{"prompt": [0], "tokens": [3], "logprobs": [NaN]}', "nan is not a log-probability"),
    "an integer beyond floats": (
        f'{{"prompt": [0], "tokens": [3], "logprobs": [-{"9" * 400}]}}',
        "-inf is not a log-probability",
    ),
    "an id of 5,000 digits": (completion([f"token_id:{'9' * 5000}"], [-1]), r"\.\.\. is not in the tokenizer"),
    "half a character in a prompt": ({**PLAIN, "prompt": "a \ud800"}, "'prompt' has half of a surrogate pair"),
    "half a character in a chat": (
        {**chat([("d", -1, None)]), "messages": [{"role": "user", "content": "\ud800"}]},
        "'messages' has half of a surrogate pair",
    ),
    "never drawn": (
        completion(["d"], [-9999.0]),
        "-9999.0 is the log-probability of a token that cannot have been",
    ),
    "null, of an echoed prompt": (
        completion(["a", "d"], [None, -1]),
        "log-probabilities holds null; expected one",
    ),
    "too few": ({**PLAIN, "logprobs": [-1, -1]}, "3 tokens and 2 log-probabilities"),
    "none": ({"prompt": [0], "tokens": [3]}, "this text was sampled, and has no log-probabilities"),
    "no logprobs in a choice": ({"prompt": "a", "choices": [{"text": "d"}]}, "neither 'logprobs' nor 'token_ids'"),
    "a word of another tokenizer": (completion(["xyz"], [-1]), 'the token "xyz" is not in the tokenizer'),
    "goes on": ({**PLAIN, "tokens": [3, 1, 4]}, "goes on after an end of sequence"),
    "broken off": ({**PLAIN, "finish_reason": "abort"}, "the finish reason 'abort' is unknown"),
    "another temperature": (
        {"request": {"prompt": "a", "temperature": 0.7}, "response": completion(["d"], [-1])},
        "the request says temperature: 0.7, and the command 1.0; import with --temperature 0.7",
    ),
    "a filter that nobody mentioned": ({**PLAIN, "top_k": 20}, "the request says top_k: 20, and the command null"),
    "a penalty": (
        {**PLAIN, "presence_penalty": 0.5},
        "presence_penalty: 0.5, which the settings of a record cannot",
    ),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_line_that_cannot_be_used_is_named(read, line, message):
    with pytest.raises(ConfigError, match=rf"log\.jsonl:3: .*{message}"):
        read(PLAIN, "", line)


def test_greedy_texts_have_p_1_whatever_was_logged(read):
    plain = {"prompt": [0], "tokens": [3, 4], "finish_reason": "length"}
    for line in (plain, {**plain, "logprobs": [-0.7, -0.2]}):
        assert one(read(line, sampling=GREEDY)).probabilities.tolist() == [1, 1]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}]
)
def test_raw_log_probabilities_of_changed_distributions_are_refused(read, settings):
    sampling = SamplingSettings(**settings)
    (name,) = settings
    with pytest.raises(
        ConfigError, match=f"sampled with {name} .*, and raw log-probabilities are those of the model"
    ):
        read(PLAIN, sampling=sampling)
    assert one(read(PLAIN, sampling=sampling, logprobs="processed")).probabilities[0] == pytest.approx(
        math.exp(-0.5)
    )


def test_settings_that_do_nothing_are_no_change(read):
    read({**PLAIN, "top_k": -1}, sampling=SamplingSettings(top_p=1.0, min_p=0.0))


def test_another_log_is_another_record(read):
    read(PLAIN)
    assert one(read(PLAIN, fresh=False)).tokens.tolist() == [3, 4, 8]
    with pytest.raises(ConfigError, match="another record"):
        read({**PLAIN, "logprobs": [-0.5, -1.25, -0.1]}, fresh=False)


def test_an_empty_log_is_refused(read):
    with pytest.raises(ConfigError, match="has no texts"):
        read("")


def test_texts_of_a_byte_level_tokenizer(read):
    """Each token of a real vocabulary is found by its text, or refused because another is written alike."""
    tokenizer = load_model("builtin:target", packed=False).tokenizer
    texts = TokenTexts(tokenizer)
    ids = tokenizer("def naïve(x):\n    return 'héllo → 世界'\n")["input_ids"]
    pieces = [tokenizer.decode([token]) for token in ids]
    broken = [piece for piece in pieces if "�" in piece]
    assert broken, "the text should have characters of several tokens"
    for token, piece in zip(ids, pieces, strict=True):
        if piece in broken:
            with pytest.raises(ValueError, match="may be any of"):
                texts.id_of(piece)
        else:
            assert texts.id_of(piece) == token
    line = {"prompt": ids[:3], "choices": [{"logprobs": {"content": []}, "finish_reason": "length"}]}
    for token in ids[3:]:  # the chat API gives the bytes of parts of characters
        piece = bytes(byte_of(char) for char in tokenizer.convert_ids_to_tokens(token))
        line["choices"][0]["logprobs"]["content"].append({"token": "?", "logprob": -1, "bytes": list(piece)})
    assert one(read(line, target="builtin:target")).tokens.tolist() == ids[3:]
    spelled = ["bytes:" + "".join(f"\\x{byte:02x}" for byte in entry["bytes"]) for entry in contents(line)]
    again = {**completion(spelled, [-1.0] * len(spelled)), "prompt": ids[:3]}
    assert one(read(again, target="builtin:target")).tokens.tolist() == ids[3:]


def contents(line):
    return line["choices"][0]["logprobs"]["content"]


def byte_of(char):
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return ord(char) if ord(char) in shown else hidden[ord(char) - 256]


def test_texts_that_lose_their_space_are_ambiguous():
    """SentencePiece writes a word with and without a space before it, and a server may log both alike."""
    tokenizer = load_model("builtin:t5-target", packed=False).tokenizer
    texts = TokenTexts(tokenizer)
    vocabulary = tokenizer.get_vocab()
    both = min(piece for piece in vocabulary if len(piece) > 2 and piece[0] == "▁" and piece[1:] in vocabulary)
    with pytest.raises(ValueError, match="may be any of 2 ids"):
        texts.id_of(both[1:])
    assert texts.id_of(both.replace("▁", " ")) == vocabulary[both]


def test_an_import_of_what_was_recorded_is_the_record(read, tmp_path):
    """Through the log and back, with raw log-probabilities at temperature 1; a study finds the part."""
    loaded = load_model(model_folder("builtin:target"), packed=False)
    prompts = ["def main():", "import os"]
    study = load_study(
        {
            "target": "builtin:target",
            "prompts": prompts,
            "generation": {"max_new_tokens": 6},
            "runs": [{"drafter": "random", "gamma": 1}],
        }
    )
    task = study.tasks[0]
    ids = tuple(tuple(loaded.tokenizer(prompt)["input_ids"]) for prompt in prompts)
    job = TextJob(tuple((one,) for one in ids), ((0,), (1,)), (0, 0), ((1,), (2,)))
    texts = record_texts(loaded, job, task.sampling, task.generation)
    lines = [
        {
            "prompt": prompt,
            "tokens": text.tokens.tolist(),
            "logprobs": np.log(text.probabilities.astype(float)).tolist(),
            "finish_reason": text.finish_reason,
        }
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    record = read(*lines, target="builtin:target", max_new_tokens=6)
    for found, text in zip(record.parts[0], texts, strict=True):
        assert found.tokens.tolist() == text.tokens.tolist()
        assert found.probabilities == pytest.approx(text.probabilities, rel=1e-6)
        assert (found.prompt, found.finish_reason) == (text.prompt, text.finish_reason)
    assert part_for(record, task) is record.parts[0]
    assert len(read_record(tmp_path / "r").parts[0]) == 2
