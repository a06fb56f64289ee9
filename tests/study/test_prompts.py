"""Prompts of a study, messages for those that are refused, and how a chat becomes token ids."""

import json
import re

import pytest
from pydantic import ValidationError

from specdec_core.interface.errors import PromptError
from specdec_core.study.config.prompt_file import PromptText
from specdec_core.study.config.prompts import encode_prompts, fingerprint_prompts, read_chat_template, read_prompts
from specdec_core.study.config.schema import PromptsConfig

HELLO = {"role": "user", "content": "hello"}
PART = {"type": "text", "text": "hello"}
CALLS = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role + ' ' + m.content + ' ' + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


@pytest.fixture
def lines(tmp_path):
    """Reads a file of these lines: bytes as they are, or objects."""

    def read(content, **kwargs):
        if not isinstance(content, bytes):
            content = "".join(json.dumps(entry) + "\n" for entry in content).encode()
        (tmp_path / "p.jsonl").write_bytes(content)
        return read_prompts(PromptsConfig(file="p.jsonl", **kwargs), tmp_path)

    return read


@pytest.fixture
def problems(lines):
    """The messages of a file that cannot be used, each without the folder."""

    def find(content, **kwargs):
        with pytest.raises(PromptError) as caught:
            lines(content, **kwargs)
        return [re.sub(r"^.*p\.jsonl", "p.jsonl", line) for line in str(caught.value).splitlines()]

    return find


def test_a_file_of_prompts(lines):
    found = lines(b'{"prompt": "a", "id": "first", "source": "x"}\n\n{"prompt": "b"}\n')
    assert found == (PromptText("first", "a", source="x"), PromptText("3", "b"))


def test_a_chat(lines):
    messages = [{"role": "system", "content": "be brief"}, {**HELLO, "name": "ann"}]
    (found,) = lines([{"messages": messages, "id": 7}])
    assert found == PromptText("7", None, tuple(messages))


def test_the_text_parts_of_a_content_are_joined(lines):
    parts = [PART, {"type": "input_text", "text": "world", "cache_control": {}}]
    assistant = {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    (found,) = lines(
        [{"messages": [{"role": "system", "content": [PART]}, assistant, HELLO | {"content": parts}]}]
    )
    assert [message["content"] for message in found.messages] == ["hello", "hi", "hello\nworld"]
    texts = [{"role": "system", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    (plain,) = lines([{"messages": [*texts, HELLO | {"content": "hello\nworld"}]}])
    assert fingerprint_prompts([found]) == fingerprint_prompts([plain])


@pytest.mark.parametrize("call", [{"content": None}, {}, {"content": ""}])
def test_a_message_of_tool_calls_needs_no_content(lines, call):
    call = {"role": "assistant", "tool_calls": CALLS, **call}
    (found,) = lines([{"messages": [HELLO, call, {"role": "tool", "content": "2"}]}])
    assert found.messages[1] == {"content": None, **call}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": ""},
        {"role": "system", "content": ""},
        {"role": "assistant", "reasoning_content": "hi", "content": ""},
    ],
)
def test_what_a_model_does_not_say_may_be_empty(lines, message):
    (found,) = lines([{"messages": [HELLO, message, HELLO]}], turns="first")
    assert found.messages[1] == message
    (found,) = lines([{"messages": [{"role": "assistant", "reasoning_content": "hi"}, HELLO]}])
    assert found.messages[0]["content"] == ""


def test_columns_group_the_prompts_and_change_no_prompt(lines):
    first = {"prompt": "a", "kind": "qa", "meta": {"tier": 2}}
    rows = [first, {"prompt": "b", "kind": None, "meta": {"tier": 2.5}}]
    assert [one.group for one in lines(rows, group="kind")] == [("qa",), ("(none)",)]
    both = lines(rows, group=["kind", "meta.tier"])
    assert [one.group for one in both] == [("qa", "2"), ("(none)", "2.5")]
    assert fingerprint_prompts(both) == fingerprint_prompts(lines(rows))
    turns = lines([{"turns": ["a", "b"], "category": "math"}], group="category")
    assert [one.group for one in turns] == [("math",)] * 2


def test_a_group_that_a_row_does_not_have_is_refused(problems):
    (line,) = problems([{"prompt": "a", "kind": "qa"}], group="kinds")
    assert re.match(r"p\.jsonl:1: .*'kinds'.*Did you mean 'kind'", line)
    (line,) = problems([{"prompt": "a", "kind": ["qa"]}], group="kind")
    assert re.match(r"p\.jsonl:1: column 'kind' groups the prompts", line)


def test_references_are_one_text_or_several(lines):
    found = lines([{"prompt": "a", "reference": "x"}, {"messages": [HELLO], "reference": ["y", "z"]}])
    assert [prompt.references for prompt in found] == [("x",), ("y", "z")]


def test_other_keys_are_free(lines):
    assert lines([{"prompt": "a", "lang": "de", "idx": 3, "resource": None, "prompt_id": 4}])[0].text == "a"


def test_the_limit_stops_reading(lines):
    assert len(lines(b'{"prompt": "a"}\nno json', limit=1)) == 1
    mixed = [{"prompt": "a", "reference": "x"}, {"prompt": "b"}]
    assert lines(mixed, limit=1)[0].references == ("x",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', r"p\.jsonl:2:\d+: invalid JSON"),
        (b'{"prompt": 3}\n', r"p\.jsonl:1: prompt: .*given 3"),
        (b"", "has no prompts"),
        (b"\n" * 3 + b'{"prompt": "a", "messages": []}', r"p\.jsonl:4: .*given 'prompt' and 'messages'"),
    ],
)
def test_what_is_wrong_has_its_line(lines, content, message):
    with pytest.raises(PromptError, match=message):
        lines(content)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"messages": [HELLO, {"content": "x"}]}, "messages[1]: missing key 'role'"),
        ({"messages": [{"role": "user", "content": [PART, {"type": "image_url"}]}]}, "'image_url'"),
        ({"messages": [HELLO, {"role": "assistant", "content": "x"}]}, "the last message is the assistant's"),
        ({"prompt": "a", "reference": 3}, "reference: expected a list; given 3"),
        ({"prompt": "a", "references": ["x"]}, "unknown key 'references'. Did you mean 'reference'?"),
    ],
    ids=lambda part: json.dumps(part) if isinstance(part, dict) else "",
)
def test_a_line_that_is_no_prompt(problems, entry, message):
    (problem,) = problems([{"prompt": "good", "reference": "x"}, entry])
    assert problem.startswith("p.jsonl:2: ")
    assert message in problem


def test_two_prompts_of_one_id(problems):
    (problem,) = problems([{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"prompt": "c", "id": "x"}])
    assert problem.startswith("p.jsonl:3: the id 'x' is that of line 1, too")
    # The number of a line is an id too.
    assert "p.jsonl:2: the id '2' is that of line 1" in problems([{"prompt": "a", "id": 2}, {"prompt": "b"}])[0]


def test_all_problems_are_said_at_once_up_to_five(problems):
    entry = {"messages": [{"role": "user"}, {"content": "x"}], "source": 3}
    found = problems([entry, {"prompt": ""}])
    assert [problem[:11] for problem in found] == ["p.jsonl:1: "] * 3 + ["p.jsonl:2: "]
    assert len(problems([{"prompt": ""}] * 9)) == 5


def test_references_for_some_prompts_only(problems):
    (problem,) = problems([{"prompt": "a", "reference": "x"}, {"prompt": "a"}, {"prompt": "a", "reference": "x"}])
    assert problem.startswith("p.jsonl:2: 2 of 3 prompts have a reference")


def test_a_missing_file(tmp_path):
    with pytest.raises(PromptError, match="the file does not exist"):
        read_prompts(PromptsConfig(file="p.jsonl"), tmp_path)
    with pytest.raises(PromptError, match="does not tell the format"):
        read_prompts(PromptsConfig(file="."), tmp_path)


def test_a_list_of_texts(tmp_path):
    found = read_prompts(PromptsConfig(texts=("a", "b", "c"), limit=2), tmp_path)
    assert found == (PromptText("1", "a"), PromptText("2", "b"))
    with pytest.raises(ValidationError, match=r"texts\.2"):
        PromptsConfig(texts=("a", "b", " "))


def test_the_prompts_that_ship(tmp_path):
    found = read_prompts(PromptsConfig(builtin="heldout", limit=3), tmp_path)
    assert len(found) == 3
    assert all(prompt.text.strip() for prompt in found)
    assert read_prompts(PromptsConfig(file="builtin:heldout", limit=3), tmp_path) == found
    with pytest.raises(PromptError, match=r"unknown prompts 'builtin:heldot'. Did you mean 'builtin:heldout'"):
        read_prompts(PromptsConfig(builtin="heldot"), tmp_path)


def test_a_chat_template_of_the_study(lines, tmp_path):
    config = PromptsConfig(file="p.jsonl", chat_template="t.jinja")
    with pytest.raises(PromptError, match=r"t\.jinja: the file does not exist"):
        lines([{"messages": [HELLO]}], chat_template="t.jinja")
    (tmp_path / "t.jinja").write_text(" \n")
    with pytest.raises(PromptError, match=r"t\.jinja: this chat template is empty"):
        lines([{"messages": [HELLO]}], chat_template="t.jinja")
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    assert lines([{"messages": [HELLO]}, {"prompt": "a"}], chat_template="t.jinja")
    assert read_chat_template(config, tmp_path) == TEMPLATE
    assert read_chat_template(PromptsConfig(file="p.jsonl"), tmp_path) is None
    with pytest.raises(PromptError, match=r"`chat_template` is set, but no prompt of .* is a chat"):
        lines([{"prompt": "a"}], chat_template="t.jinja")


def test_the_digest_is_of_what_decides_an_answer():
    def digest(*prompts, template=None):
        return fingerprint_prompts(prompts, template)

    text = PromptText("1", "a")
    assert digest(text) == digest(PromptText("2", "a", references=("x",), source="y"))
    chat = PromptText("1", None, (HELLO,))
    others = [digest(PromptText("1", "b")), digest(text, text), digest(chat), digest(chat, template="t")]
    others.append(digest(PromptText("1", None, ({**HELLO, "role": "system"},))))
    others += [digest(PromptText("1", None, tokens=(n,))) for n in (3, 4)]
    assert len({digest(text), *others}) == 8


@pytest.fixture(scope="module")
def tokenizer():
    """One that puts `<s>` before and `</s>` behind every text that it is given."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "?", "user", "assistant", "system", "hello", "hi"]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?", bos_token="<s>", eos_token="</s>")


@pytest.fixture
def encode(tokenizer, monkeypatch):
    def run(messages, own=None, given=None):
        monkeypatch.setattr(tokenizer, "chat_template", own)
        prompt = PromptText("greeting", None, tuple(messages))
        return encode_prompts([prompt], tokenizer, model="tiny", chat_template=given)[0]

    return run


def test_a_text_stays_a_text(tokenizer):
    assert encode_prompts([PromptText("1", "hello")], tokenizer, model="tiny") == ["hello"]
    assert encode_prompts([PromptText("1", "hello")], None, model="tiny", chat_template="x") == ["hello"]


def test_a_chat_is_written_by_the_template_with_no_special_token_twice(encode, tokenizer):
    expected = [0, 3, 6, 1, 4, 7, 1, 3, 6, 1, 4]
    messages = [HELLO, {"role": "assistant", "content": "hi"}, HELLO]
    assert tokenizer("hello")["input_ids"] == [0, 6, 1]
    found = encode(messages, own=TEMPLATE)
    assert found == expected
    assert all(type(token) is int for token in found)
    assert encode(messages, given=TEMPLATE) == expected


def test_tool_calls_reach_the_template_as_it_expects_them(encode):
    messages = [HELLO, {"role": "assistant", "tool_calls": CALLS}]
    with pytest.raises(
        PromptError, match=r"message 2 has no content, and the chat template of tiny writes no tool_c"
    ):
        encode(messages, own=TEMPLATE)
    calling = "{% for m in messages %}{{ 'hi' if m.tool_calls and not m.content else m.content }} {% endfor %}"
    assert encode(messages, own=calling) == encode(messages, given=calling) == [6, 7]


def test_a_template_that_reads_parts_is_given_parts(encode):
    """Such as that of Llama Guard 3 1B and of Llava: a text would be read letter by letter, and left out."""
    chat = [{"role": "system", "content": "hi"}, {**HELLO, "content": " hello "}]
    parts = "{% for part in messages[1].content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}"
    for system in ("content", "content[0].text"):
        assert encode(chat, own=f"{{{{ messages[0].{system} }}}} {parts}") == [7, 6]
    with pytest.raises(PromptError, match="leaves out message 1, whose role is 'system'"):
        encode(chat, own=parts)


def test_a_template_that_is_given_goes_before_the_tokenizers_own(encode):
    assert encode([HELLO], own=TEMPLATE, given="{{ messages[0].content }}") == [6]


def test_a_tokenizer_without_a_template(encode):
    with pytest.raises(PromptError) as caught:
        encode([HELLO])
    said = str(caught.value)
    assert said.startswith("prompt 'greeting' is a chat, but the tokenizer of tiny has no chat template.")
    assert "instruction-tuned" in said
    assert "`chat_template: FILE` in `prompts`" in said
    with pytest.raises(PromptError, match="prompt '1' is a chat, but tiny has no tokenizer"):
        encode_prompts([PromptText("1", None, (HELLO,))], None, model="tiny", chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "error: roles must alternate. Change the messages"),
        ("a\n{% for %}", r"raised an error: Expected an expression.* \(line 2 of the template\)"),
        ("{{ messages[0].role }}", "leaves out message 1, whose role is 'user'"),
    ],
)
def test_a_template_that_fails(encode, template, said):
    with pytest.raises(PromptError, match=f"^prompt 'greeting': the chat template of tiny .*{said}"):
        encode([HELLO], own=template)
    with pytest.raises(PromptError, match=f"^prompt 'greeting': the given chat template .*{said}"):
        encode([HELLO], given=template)


class TestTokens:
    """Prompts of token ids: inline and in files."""

    def test_a_list_of_them(self, tmp_path):
        config = PromptsConfig(tokens=[[5], [6, 7]])
        assert read_prompts(config, tmp_path) == (
            PromptText("1", None, tokens=(5,)),
            PromptText("2", None, tokens=(6, 7)),
        )
        assert len(read_prompts(PromptsConfig(tokens=[[5], [6]], limit=1), tmp_path)) == 1
        shuffled = read_prompts(PromptsConfig(tokens=[[n] for n in range(9)], shuffle=0), tmp_path)
        assert sorted(one.tokens for one in shuffled) == [(n,) for n in range(9)]
        assert [one.tokens for one in shuffled] == [(int(one.id) - 1,) for one in shuffled]
        assert shuffled[0].id != "1"

    def test_a_file_of_them(self, lines):
        found = lines([{"tokens": [3, 4], "id": "three", "source": "x"}])
        assert found == (PromptText("three", None, source="x", tokens=(3, 4)),)
        assert lines([{"prompt": "a", "tokens": 12}])[0] == PromptText("1", "a")

    @pytest.mark.parametrize("tokens", [[], 3, None, [3, -1]])
    def test_what_is_no_list_of_ids_has_its_line(self, problems, tokens):
        (line,) = problems([{"tokens": tokens}])
        assert line.startswith("p.jsonl:1: tokens" if tokens is not None else "p.jsonl:1: the prompt is null")

    @pytest.mark.parametrize("tokens", [[[]], [[-1]], [["a"]], [3]])
    def test_a_study_is_told_before_it_runs(self, tokens):
        with pytest.raises(ValidationError, match="tokens"):
            PromptsConfig(tokens=tokens)

    def test_no_message_of_a_chat(self, lines):
        with pytest.raises(ValidationError, match="'chat' requires texts"):
            PromptsConfig(tokens=[[1]], chat=True)
        with pytest.raises(PromptError, match="prompt '1' is token ids; a message of a chat is a text"):
            lines([{"tokens": [3]}], chat=True)

    def test_they_reach_the_decoder_as_they_are(self):
        assert encode_prompts([PromptText("1", None, tokens=(3, 4))], None, model="a model") == [[3, 4]]


def test_the_other_texts_and_numbers_of_a_row_are_the_metadata_of_its_prompt(lines):
    row = {"prompt": "a", "id": "x", "user": "ann", "age": 3, "tags": ["b"], "answer": "c"}
    (found,) = lines([row], columns={"prompt": "prompt", "reference": "answer"})
    assert found.metadata == {"user": "ann", "age": 3}
