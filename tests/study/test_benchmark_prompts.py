"""Prompts of benchmarks, read from small files of the same shape, and the settings that they bring along."""

import json

import pytest

from specdec_core.interface.errors import PromptError
from specdec_core.study import load_study
from specdec_core.study.config.benchmarks import BENCHMARKS
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"

SPEED = {
    "question_id": "ab12",
    "category": "coding",
    "sub_category": "python",
    "turns": ["Add two numbers.", "Now three."],
    "source": "written",
    "src_id": "w_0",
    "difficulty": "",
    "multiturn": True,
}
QUESTION = {"question_id": 81, "category": "writing", "turns": ["A poem.", "Shorter."], "reference": ["x"]}
ROWS = {
    "speed-bench": (SPEED, "Add two numbers.", "ab12", ("coding",)),
    "spec-bench": (QUESTION, "A poem.", "81", ("writing",)),
    "mt-bench": (
        {"prompt": ["A poem.", "Shorter."], "prompt_id": 7, "category": "writing", "reference": []},
        *("A poem.", "7", ("writing",)),
    ),
    "gsm8k": ({"question": "1 + 1?", "answer": "It is 2.\n#### 2"}, "1 + 1?" + STEPS, "1", ()),
    "math-500": (
        {
            "problem": "Solve $x = {1}$.",
            "solution": "1",
            "answer": "1",
            "subject": "Algebra",
            "level": 1,
            "unique_id": "test/algebra/1.json",
        },
        *("Solve $x = {1}$." + STEPS, "test/algebra/1.json", ("Algebra",)),
    ),
    "humaneval": (
        {"task_id": "Own/0", "prompt": "def f():\n", "canonical_solution": "", "test": "", "entry_point": "f"},
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f():\n\n```",
        *("Own/0", ()),
    ),
    "mbpp": (
        {"task_id": 11, "text": "Write a function.", "code": "", "test_list": ["assert f()"]},
        *("Write a function.", "11", ()),
    ),
}
"""A row of each benchmark, with all its columns, and the prompt, the id and the group that are read from it."""


@pytest.fixture
def write(tmp_path):
    """Writes rows as JSON lines."""

    def to(name, *rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return to


@pytest.fixture
def read(tmp_path):
    """Reads prompts with paths relative to the test's folder."""
    return lambda **settings: read_prompts(PromptsConfig(**settings), tmp_path)


def test_every_benchmark_is_tried():
    assert ROWS.keys() == BENCHMARKS.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_a_benchmark(read, write, name):
    row, text, own_id, group = ROWS[name]
    write("rows.jsonl", row)
    prompt, *later = read(benchmark=name, path="rows.jsonl")
    assert prompt.messages == ({"role": "user", "content": text},)
    assert (prompt.id, prompt.group, prompt.references) == (own_id, group, ())
    turns = row.get("turns") or row.get("prompt")
    assert [one.messages[0]["content"] for one in later] == (turns[1:] if isinstance(turns, list) else [])


def test_a_question_of_mt_bench_as_fastchat_has_it(read, write):
    write("question.jsonl", QUESTION)
    prompt, *later = read(benchmark="mt-bench", path="question.jsonl")
    assert (prompt.id, prompt.messages[0]["content"], len(later)) == ("81", "A poem.", 1)


def test_tasks_of_spec_bench_are_a_column(read, write):
    categories = ("writing", "math_reasoning", "humanities", "rag")
    write("question.jsonl", *({**QUESTION, "question_id": n, "category": c} for n, c in enumerate(categories)))
    given = {"benchmark": "spec-bench", "path": "question.jsonl", "turns": "first"}
    groups = [one.group for one in read(**given, group=["task", "category"])]
    tasks = ("mt_bench", "math_reasoning", "mt_bench", "rag")
    assert groups == [*zip(tasks, categories, strict=True)]
    assert [one.group for one in read(**given)] == [(one,) for one in categories]
    with pytest.raises(PromptError, match="unknown column 'task'"):
        read(file="question.jsonl", group="task")


def test_the_test_split_of_mbpp_is_read_from_the_file_of_all_its_tasks(read, write):
    row = ROWS["mbpp"][0]
    write("mbpp.jsonl", *({**row, "task_id": number} for number in (1, 10, 11, 510, 511, 974)))
    assert [one.id for one in read(benchmark="mbpp", path="mbpp.jsonl")] == ["11", "510"]
    write("train.jsonl", {**row, "task_id": 974})
    assert [one.id for one in read(benchmark="mbpp", path="train.jsonl")] == ["974"]


def test_what_a_study_states_wins(read, write):
    row = {"question": "1 + 1?", "answer": "2"}
    write("rows.jsonl", row)
    plain = {"benchmark": "gsm8k", "path": "rows.jsonl"}
    assert read(**plain, chat=False)[0].text == "1 + 1?" + STEPS
    assert read(**plain, chat=False, template="Q: {question}")[0].text == "Q: 1 + 1?"
    assert read(**plain, chat=False, column="answer", columns={"id": "question"})[0].id == "1 + 1?"
    assert read(**plain, chat=False, columns={"prompt": "answer"})[0].text == "2"
    assert read(**plain, system="Be brief.")[0].messages[0]["role"] == "system"
    # A record keeps what differs from the defaults.
    config = PromptsConfig(**plain, chat=False)
    assert PromptsConfig(**config.model_dump(exclude_defaults=True)) == config


@pytest.mark.parametrize(
    ("files", "settings", "chosen"),
    [
        (["qualitative/test-00000-of-00001.parquet.jsonl"], {}, 0),
        (["README.md", "throughput_1k/test.jsonl", "qualitative/test.jsonl"], {}, 2),
        (["throughput_1k/test.jsonl", "throughput_16k/test.jsonl"], {"config": "throughput_1k"}, 0),
        (["qualitative/train.jsonl", "qualitative/test.jsonl"], {}, 1),
    ],
)
def test_the_file_of_a_folder(read, write, files, settings, chosen):
    for number, name in enumerate(files):
        write(f"copy/{name}", {**SPEED, "question_id": number})
    assert read(benchmark="speed-bench", path="copy", **settings)[0].id == str(chosen)


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (["a.jsonl", "b.jsonl"], {}, r"given a\.jsonl, b\.jsonl\. Name one with `path`"),
        (["qualitative/test.jsonl"], {"config": "throughput_1k"}, "given qualitative/test.jsonl"),
    ],
)
def test_a_folder_without_the_file(read, write, tmp_path, files, settings, message):
    (tmp_path / "copy").mkdir()
    for name in files:
        write(f"copy/{name}", SPEED)
    with pytest.raises(PromptError, match=message):
        read(benchmark="speed-bench", path="copy", **settings)


def test_placeholders_of_speed_bench_are_refused(read, write):
    held_back = {**SPEED, "question_id": "cd34", "turns": [f"{PLACEHOLDER}\n\nYou are {{role_name}}."]}
    write("rows.jsonl", SPEED, held_back, {**held_back, "question_id": "ef56"})
    for settings in ({"benchmark": "speed-bench", "path": "rows.jsonl"}, {"file": "rows.jsonl"}):
        with pytest.raises(PromptError, match=r"rows\.jsonl: 2 prompts, first 'cd34', .* `python prepare"):
            read(**settings)
    assert len(read(benchmark="speed-bench", path="rows.jsonl", limit=1, turns="first")) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_benchmark_through_datasets(read, write, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(*args, **kwargs):
        asked.append((*args, kwargs))
        return datasets.Dataset.from_list([ROWS["gsm8k"][0]], split="test")

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read(benchmark="gsm8k", chat=False)[0].text == "1 + 1?" + STEPS
    assert asked == [("openai/gsm8k", "main", {"split": "test", "revision": None})]


STUDY = {"target": "builtin:target", "prompts": {"benchmark": "gsm8k", "path": "rows.jsonl"}}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, (0.0, 4096, 0)),
        ({"sampling": {"temperature": 1.0}, "generation": {"max_new_tokens": 8}}, (1.0, 8, 0)),
        ({"sampling": {"top_p": 0.9}, "generation": {"seed": 3}}, (1.0, 4096, 3)),
        ({"tasks": [{"name": "a", "generation": {"max_new_tokens": 9}}]}, (0.0, 9, 0)),
        ({"tasks": [{"name": "a", "prompts": ["x"]}]}, (1.0, 128, 0)),
    ],
)
def test_settings_of_a_study_of_a_benchmark(write, monkeypatch, tmp_path, stated, expected):
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", ROWS["gsm8k"][0])
    (task,) = load_study({**STUDY, "runs": [{"drafter": "prompt-copy", "gamma": 2}], **stated}).tasks
    generation = task.generation
    assert (task.sampling.temperature, generation.max_new_tokens, generation.seed) == expected
    assert not generation.ignore_eos
