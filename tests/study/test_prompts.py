import pytest

from specdec_core import PromptError
from specdec_core.study.config import PromptsConfig
from specdec_core.study.prompts import read_prompts


@pytest.fixture
def lines(tmp_path):
    def read(content, **kwargs):
        (tmp_path / "p.jsonl").write_bytes(content)
        return read_prompts(PromptsConfig(file="p.jsonl", **kwargs), tmp_path)

    return read


def test_a_file_of_prompts(lines):
    found = lines(b'{"prompt": "a", "id": "first", "source": "x"}\n\n{"prompt": "b"}\n')
    assert [(prompt.id, prompt.text) for prompt in found] == [("first", "a"), ("3", "b")]


def test_the_limit_stops_reading(lines):
    assert len(lines(b'{"prompt": "a"}\nno json', limit=1)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', r"p\.jsonl:2:\d+: this is no JSON"),
        (b'{"text": "a"}\n', r'p\.jsonl:1: expected an object with a text under "prompt"; this has: keys text'),
        (b'{"prompt": 3}\n', r"p\.jsonl:1: expected an object"),
        (b'["a"]\n', r"p\.jsonl:1: .*this has: list"),
        (b'{"prompt": "a"}\n{"prompt": "  "}\n', r"p\.jsonl:2: prompt 2 is empty"),
        (b"", "holds no prompt"),
        (b"\xff\xfe", "this is no text file"),
    ],
)
def test_what_is_wrong_has_its_line(lines, content, message):
    with pytest.raises(PromptError, match=message):
        lines(content)


def test_a_missing_file(tmp_path):
    with pytest.raises(PromptError, match="there is no such file"):
        read_prompts(PromptsConfig(file="p.jsonl"), tmp_path)
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(PromptsConfig(file="."), tmp_path)


def test_the_prompts_that_ship(tmp_path):
    found = read_prompts(PromptsConfig(builtin="heldout", limit=3), tmp_path)
    assert len(found) == 3
    assert all(prompt.text.strip() for prompt in found)
