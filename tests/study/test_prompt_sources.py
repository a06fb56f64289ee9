"""Prompts from where people have them: tables, JSON, text, Spec-Bench's questions, Hugging Face datasets."""

import gzip
import json
import sys

import pytest
from pydantic import ValidationError

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import PromptError
from specdec_core.study import load_study
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig

QUESTIONS = [
    {
        "question_id": 81,
        "category": "writing",
        "turns": ["Write a poem.", "Make it shorter."],
        "reference": ["a", "b"],
    },
    {"question_id": 82, "category": "math", "turns": ["What is 2 + 2?"]},
]


@pytest.fixture
def read(tmp_path):
    """Reads prompts with paths relative to the test's folder."""
    return lambda **settings: read_prompts(PromptsConfig(**settings), tmp_path)


@pytest.fixture
def write(tmp_path):
    """Writes a file: text, or objects as JSON lines."""

    def to(name, content):
        text = content if isinstance(content, str) else "".join(json.dumps(one) + "\n" for one in content)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return to


def texts(prompts):
    return [prompt.text for prompt in prompts]


def test_a_table_with_columns_of_our_own(read, write):
    write("p.csv", '\ufeffprompt,reference,extra\n"a, b",x,1\n"two\nlines",y,2\n')
    assert read(file="p.csv") == (
        PromptText("2", "a, b", references=("x",)),
        PromptText("3", "two\nlines", references=("y",)),
    )


@pytest.mark.parametrize(("name", "separator"), [("p.csv", ","), ("p.tsv", "\t")])
def test_columns_of_a_table_by_name(read, write, name, separator):
    rows = [["question", "answer", "key"], ["Why?", "Because.", "k1"], ["How?", "So.", "k2"]]
    write(name, "".join(separator.join(row) + "\n" for row in rows))
    assert texts(read(file=name, column="question")) == ["Why?", "How?"]
    found = read(file=name, columns={"prompt": "question", "reference": "answer", "id": "key", "source": "key"})
    assert found[1] == PromptText("k2", "How?", references=("So.",), source="k2")
    filled = read(file=name, template="{{Q}}: {question}\nA:", columns={"reference": "answer"})
    assert filled[0] == PromptText("2", "{Q}: Why?\nA:", references=("Because.",))


def test_a_quote_in_a_tsv_is_a_character(read, write):
    write("p.tsv", 'prompt\tid\n"Why?\ta\nsay "b"\tb\n')
    assert read(file="p.tsv") == (PromptText("a", '"Why?'), PromptText("b", 'say "b"'))


def test_a_value_may_be_long(read, write):
    write("p.csv", f"prompt\n{'a' * 140_000}\n")
    assert len(read(file="p.csv")[0].text) == 140_000


def test_a_file_of_gzip(read, tmp_path):
    packed = gzip.compress(b'{"prompt": "a"}\n')
    (tmp_path / "p.jsonl.gz").write_bytes(packed)
    assert texts(read(file="p.jsonl.gz")) == ["a"]
    for broken in (packed[:-9], b"plain"):
        (tmp_path / "p.jsonl.gz").write_bytes(broken)
        with pytest.raises(PromptError, match=r"p\.jsonl\.gz: cannot be read"):
            read(file="p.jsonl.gz")


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (
            "question,answer\na,b\nc,d\n",
            {"column": "qestion"},
            r"Did you mean 'question'\? Available: answer, quest",
        ),
        ("a,b\n1,2\n3,4,5\n", {"column": "a"}, r"p\.csv:3: this row has 3 values, the header has 2"),
        ('a\n"b"c\n', {"column": "a"}, r"p\.csv:2: .*not a table"),
    ],
)
def test_what_is_wrong_in_a_table_has_its_line_and_the_columns(read, write, content, settings, message):
    write("p.csv", content)
    with pytest.raises(PromptError, match=message) as caught:
        read(file="p.csv", **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_keys_of_json_lines_by_name(read, write):
    write("p.jsonl", [{"text": "a", "gold": ["x", "y"], "reference": 3}, {"text": "b", "gold": "z"}])
    assert texts(read(file="p.jsonl", column="text")) == ["a", "b"]
    found = read(file="p.jsonl", columns={"prompt": "text", "reference": "gold"})
    assert [one.references for one in found] == [("x", "y"), ("z",)]
    write("p.jsonl", [{"text": "a"}, {"txt": "b"}, {"text": 3}])
    with pytest.raises(PromptError) as caught:
        read(file="p.jsonl", column="text")
    second, third = str(caught.value).splitlines()
    assert second.endswith("p.jsonl:2: unknown column 'text'. Did you mean 'txt'? Available: txt.")
    assert third.endswith("p.jsonl:3: column 'text' must hold a text; given 3.")
    write("p.jsonl", [{"chat": [{"role": "user", "content": "hi"}]}])
    assert read(file="p.jsonl", columns={"messages": "chat"})[0].messages == ({"role": "user", "content": "hi"},)


def test_a_dot_reaches_into_objects_and_lists(read, write):
    write(
        "p.jsonl", [{"translation": {"de": "Hallo", "en": "Hello"}, "talk": [{"value": "Hi"}, {"value": "Bye"}]}]
    )
    columns = {"prompt": "translation.de", "reference": "translation.en"}
    assert read(file="p.jsonl", columns=columns) == (PromptText("1", "Hallo", references=("Hello",)),)
    assert texts(read(file="p.jsonl", column="talk.0.value")) == ["Hi"]
    assert texts(read(file="p.jsonl", template="{translation.de}: {talk.1.value}")) == ["Hallo: Bye"]
    write("p.jsonl", [{"a.b": "whole"}])
    assert texts(read(file="p.jsonl", column="a.b")) == ["whole"]
    write("p.jsonl", [{"translation": {"de": "a", "en": "b"}}])
    with pytest.raises(PromptError, match=r"'translation\.fr'.*Available: translation\.de, translation\.en\."):
        read(file="p.jsonl", column="translation.fr")


def test_a_json_list(read, write):
    write("p.json", '[{"prompt": "a"}, {"prompt": "b", "id": "x"}]')
    assert read(file="p.json") == (PromptText("1", "a"), PromptText("x", "b"))
    write("p.json", '{"prompt": "a"}\n{"prompt": "b"}')
    with pytest.raises(PromptError, match=r"p\.json:2:1: .*\.jsonl"):
        read(file="p.json")


def test_text_has_a_prompt_per_line(read, write):
    write("p.txt", "\ufefffirst \n\n  second\n")
    assert read(file="p.txt") == (PromptText("1", "first "), PromptText("3", "  second"))


def test_questions_of_spec_bench(read, write):
    write("question.jsonl", QUESTIONS)
    user = [{"role": "user", "content": text} for text in ("Write a poem.", "Make it shorter.", "What is 2 + 2?")]
    first = PromptText("81", None, (user[0],), source="writing")
    third = PromptText("82", None, (user[2],), source="math")
    second = PromptText("81 turn 2", None, (user[1],), source="writing", turn=2)
    assert read(file="question.jsonl") == (first, second, third)
    assert read(file="question.jsonl", turns="first") == (first, third)
    assert read(file="question.jsonl", limit=1, column="turns")[1].messages == (user[1],)
    assert texts(read(file="question.jsonl", column="turns.0")) == ["Write a poem.", "What is 2 + 2?"]
    chat, *later = read(file="question.jsonl", chat=True, system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert chat.messages == (system, user[0])
    assert [one.messages for one in later] == [(user[1],), (system, user[2])]
    write("question.jsonl", [{"turns": ["a", 2]}])
    with pytest.raises(PromptError, match="turns of a user; given 2"):
        read(file="question.jsonl")


def test_conversations_of_sharegpt_are_what_its_users_say(read, write):
    def talk(*pairs):
        return {"id": "a_0", "conversations": [{"from": who, "value": text} for who, text in pairs]}

    human, answer = ("human", "Hi"), ("gpt", "Hello")
    rows = [
        talk(answer, human, answer, ("human", " "), ("user", "Bye"), answer),
        talk(),
        talk(answer),
        talk(human),
    ]
    write("p.json", json.dumps(rows))
    for settings in ({}, {"columns": {"messages": "conversations"}}):
        found = read(file="p.json", **settings)
        assert [(one.id, one.messages[0]["content"]) for one in found] == [
            ("1", "Hi"),
            ("1 turn 2", "Bye"),
            ("4", "Hi"),
        ]
    write("p.json", json.dumps([talk(human, ("observation", "3"))]))
    with pytest.raises(PromptError, match="entry 1: unknown speaker 'observation'"):
        read(file="p.json")


def test_a_user_who_speaks_again_has_been_answered_in_between(read, write):
    def said(*roles):
        write("p.jsonl", [{"messages": [{"role": role, "content": "x"} for role in roles], **more}])
        return [[message["role"] for message in turn.messages] for turn in read(file="p.jsonl")]

    more = {}
    assert said("system", "user", "user") == [["system", "user"], ["user"]]
    assert said("user", "assistant", "user") == [["user", "assistant", "user"]]
    assert said("user", "assistant", "user", "user", "system", "user") == [
        ["user", "assistant", "user"],
        ["user", "system", "user"],
    ]
    assert said("user", "assistant", "tool", "user") == [["user", "assistant", "tool"], ["user"]]
    more = {"reference": "y"}
    with pytest.raises(PromptError, match="prompt '1' has 2 turns and a reference"):
        said("user", "user")


def test_a_random_sample_is_the_same_for_a_seed(read, write):
    write("p.txt", "".join(f"{number}\n" for number in range(50)))
    first, again, other = (texts(read(file="p.txt", shuffle=seed, limit=8)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 8
    assert first != texts(read(file="p.txt", limit=8))
    listed = tuple(map(str, range(50)))
    assert texts(read(texts=listed, shuffle=1, limit=8)) == first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "given none of them"),
        ({"file": "a.csv", "dataset": "b"}, "given 'file' and 'dataset'"),
        ({"file": "a.csv", "split": "test"}, "'split' requires 'dataset' or 'benchmark'; given 'file'"),
        ({"benchmark": "gsm8"}, "unknown benchmark 'gsm8'. Did you mean 'gsm8k'"),
        ({"file": "a.csv", "template": "{a"}, "write a brace that is not a column as two"),
        ({"file": "a.csv", "system": "x"}, "'system' requires 'chat: true'"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ValidationError, match=message):
        PromptsConfig(**settings)


def test_missing_packages_are_named(read, write, monkeypatch, tmp_path):
    for name in ("datasets", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PromptError, match=r"needs the package datasets.*pip install 'specdec-core\[datasets\]'"):
        read(dataset=str(tmp_path), column="x")
    write("p.parquet", "x")
    with pytest.raises(PromptError, match=r"parquet needs pyarrow.*pip install 'specdec-core\[datasets\]'"):
        read(file="p.parquet")


def test_a_parquet_file(read, write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"q": ["a", "b", "c"], "n": [1, 2, 3]}), tmp_path / "p.parquet")
    found = read(file="p.parquet", columns={"prompt": "q", "id": "n"}, limit=2)
    assert found == (PromptText("1", "a"), PromptText("2", "b"))
    with pytest.raises(PromptError, match=r"p\.parquet: row 1: unknown column 'question'.*Available: n, q\."):
        read(file="p.parquet", column="question")
    write("p.parquet", "x")
    with pytest.raises(PromptError, match=r"p\.parquet: .*not a parquet file"):
        read(file="p.parquet")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A folder with two splits of a dataset as JSON lines."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "questions"
    folder.mkdir()
    for split, count in (("train", 30), ("test", 4)):
        rows = [{"question": f"{split} {number}?", "answer": str(number)} for number in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.name


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_in_a_folder(dataset, read):
    found = read(dataset=dataset, split="test", column="question", limit=2)
    assert found == (PromptText("1", "test 0?"), PromptText("2", "test 1?"))
    template = read(dataset=dataset, split="test", template="Q: {question}", columns={"reference": "answer"})
    assert template[3] == PromptText("4", "Q: test 3?", references=("3",))
    sample = read(dataset=dataset, split="train", column="question", shuffle=0, limit=5)
    assert len(set(texts(sample))) == 5 != texts(sample) == [f"train {int(one.id) - 1}?" for one in sample]
    assert texts(read(dataset=dataset, split="train[28:]", column="question")) == ["train 28?", "train 29?"]


@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_a_dataset_names_splits_and_columns(dataset, read):
    with pytest.raises(PromptError, match=r"questions: set `split` to one of its splits: train, test"):
        read(dataset=dataset, column="question")
    with pytest.raises(PromptError, match=r"questions: this dataset cannot be loaded: .*Unknown split \"tset\""):
        read(dataset=dataset, split="tset", column="question")
    with pytest.raises(PromptError, match=r"questions \(test\): row 1: .*'qestion'.*Available: answer, quest"):
        read(dataset=dataset, split="test", column="qestion")
    with pytest.raises(PromptError, match="no such folder"):
        read(dataset="./nowhere", column="a")


STUDY = """
target: builtin:target
prompts: {prompts}
runs: [{{drafter: prompt-copy, gamma: 4}}]
"""


def test_a_study_says_where_its_prompts_are_wrong(write, tmp_path):
    write("p.csv", "question\na\n")
    path = write("study.yaml", STUDY.format(prompts="{file: p.csv, colum: question}"))
    with pytest.raises(ConfigError, match=r"study\.yaml:3:24: .*unknown key 'colum'. Did you mean 'column'"):
        load_study(path)
    write("study.yaml", STUDY.format(prompts="{file: p.csv}"))
    with pytest.raises(ConfigError, match=r"study\.yaml:3:17: .*p\.csv:2: .*no column 'prompt'"):
        load_study(path)
    write("study.yaml", STUDY.format(prompts="{file: p.csv, column: question}"))
    assert load_study(path).tasks[0].prompts == (PromptText("2", "a"),)
