"""Texts that another program generated become a record that replays as one of our own."""

import json

import numpy as np
import pytest

from specdec_core.interface import ConfigError
from specdec_core.interface.settings import GenerationSettings, SamplingSettings, TargetConfig
from specdec_core.models import load_model
from specdec_core.offline.record.decode import TextJob, record_texts
from specdec_core.offline.record.import_texts import import_texts
from specdec_core.offline.record.recorded_target import target_info
from specdec_core.offline.record.tasks import part_for
from specdec_core.study import load_study

PLAIN = {"prompt": [0, 1], "tokens": [3, 4], "logprobs": [-1, -2.5]}


@pytest.fixture
def read(tmp_path, model_folder):
    """Import some lines."""

    def read(*lines, fresh=False, temperature=1.0, **generation):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / "log.jsonl").write_text("".join(f"{text}\n" for text in texts))
        how = SamplingSettings(temperature=temperature), GenerationSettings(**generation)
        target = TargetConfig(model=str(model_folder))
        return import_texts(tmp_path / "log.jsonl", tmp_path / "r", target, *how, fresh=fresh)

    return read


def test_lines_with_one_prompt_are_its_samples(read, model_folder):
    other = {**PLAIN, "prompt": [5], "finish_reason": "stop", "id": "mine"}
    record = read(PLAIN, other, {**PLAIN, "tokens": [7, 8]})
    (part,) = record.parts
    assert [(text.prompt, text.sample, text.tokens.tolist(), text.finish_reason) for text in part] == [
        ((0, 1), 0, [3, 4], "length"),
        ((0, 1), 1, [7, 8], "length"),
        ((5,), 0, [3, 4], "stop"),
    ]
    assert next(iter(part)).probabilities == pytest.approx([0.367879, 0.082085], abs=1e-6)
    assert [prompt.id for prompt in part.prompts] == ["1", "mine"]
    loaded = load_model(model_folder)
    assert record.header.eos_ids == loaded.eos_ids
    assert target_info(record).tokenizer("a h z")["input_ids"] == loaded.tokenizer("a h z")["input_ids"]


def test_an_end_of_sequence_is_the_reason(read, model_folder):
    (end,) = load_model(model_folder).eos_ids
    line = {**PLAIN, "tokens": [3, end]}
    assert read(line).parts[0].texts[0].finish_reason == "eos"
    assert read(line, ignore_eos=True, fresh=True).parts[0].texts[0].finish_reason == "length"
    with pytest.raises(ConfigError, match=r"log\.jsonl: line 1: .*goes on after an end of sequence"):
        read({**PLAIN, "tokens": [end, 3]}, fresh=True)


def test_marks_and_breaks_within_a_text_part_no_lines(read):
    other = {**PLAIN, "id": "a\u2028b", "prompt": [5]}
    (part,) = read("\ufeff" + json.dumps(other, ensure_ascii=False), "", PLAIN).parts
    assert [prompt.id for prompt in part.prompts] == ["a\u2028b", "2"]


def test_groups_are_those_of_the_lines(read):
    (part,) = read({**PLAIN, "group": ["code"]}, {**PLAIN, "prompt": [5], "group": ["prose"]}).parts
    assert [prompt.group for prompt in part.prompts] == [("code",), ("prose",)]
    with pytest.raises(ConfigError, match="as many values in `group`"):
        read({**PLAIN, "group": ["code"]}, {**PLAIN, "prompt": [5]}, fresh=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Invalid JSON"),
        ({**PLAIN, "prompt": "a b"}, "prompt: "),
        ({**PLAIN, "tokens": [3, 9]}, "below 9"),
        ({**PLAIN, "logprobs": [-1, 0.5]}, r"logprobs\.1: "),
        ({**PLAIN, "tokens": [3] * 9, "logprobs": [-1] * 9}, "the length limit is 8"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(read, line, message):
    with pytest.raises(ConfigError, match=rf"log\.jsonl: line 1: .*{message}"):
        read(line, max_new_tokens=8)


def test_a_record_is_replaced_only_if_asked(read):
    read(PLAIN)
    with pytest.raises(ConfigError, match="holds a record; --fresh"):
        read(PLAIN, PLAIN)
    assert len(read(PLAIN, PLAIN, fresh=True).parts[0]) == 2


def test_what_we_record_and_log_is_imported_as_it_was(read, model_folder):
    """Texts of our own target, logged and imported, have the same p, and a study finds them."""
    target, prompts = load_model(model_folder), ((0, 1, 2), (3, 4))
    job = TextJob(tuple((one,) for one in prompts), ((0,), (1,)), (0, 0), ((5,), (6,)))
    texts = record_texts(target, job, SamplingSettings(), GenerationSettings(max_new_tokens=6))
    lines = [
        {
            "prompt": text.prompt,
            "tokens": text.tokens.tolist(),
            "logprobs": np.log(text.probabilities.astype(float)).tolist(),
            "finish_reason": text.finish_reason,
        }
        for text in texts
    ]
    record = read(*lines, max_new_tokens=6)
    for found, text in zip(record.parts[0], texts, strict=True):
        assert (found.prompt, found.tokens.tolist()) == (text.prompt, text.tokens.tolist())
        assert found.probabilities.tolist() == pytest.approx(text.probabilities.tolist(), rel=1e-7)
    study = {
        "target": str(model_folder),
        "prompts": {"tokens": [list(one) for one in prompts]},
        "generation": {"max_new_tokens": 6},
        "runs": [{"drafter": "random", "gamma": 2}],
    }
    assert part_for(record, load_study(study).tasks[0]) is record.parts[0]
