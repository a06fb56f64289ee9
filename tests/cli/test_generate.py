"""`specdec generate` on a tiny model, and the trace of Figure 1."""

import io
import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from specdec_core import Outcome, StepReport
from specdec_core.cli.generate import fates
from specdec_core.cli.terminal.console import PlainConsole
from tests.commands import run_command


@pytest.fixture
def generate(toys, model_folder):
    def run(*arguments, **kwargs):
        shared = ["generate", "--model", str(model_folder), "--max-new-tokens", "10"]
        return run_command(*shared, *arguments, **kwargs)

    return run


def text_of(model_folder, *, sampling=None, prompt="a b c", **settings):
    from specdec_core import Decoder, GenerationSettings, SamplingSettings, load_model

    decoder = Decoder(load_model(model_folder), sampling=SamplingSettings(**(sampling or {})))
    return decoder.generate([prompt], GenerationSettings(max_new_tokens=10, **settings)).sequences[0].text


def test_the_text_is_streamed_to_standard_output(generate, model_folder):
    result = generate("a b c")
    assert result.exit_code == 0, result.output
    assert result.stdout == text_of(model_folder) + "\n"


def test_a_bar_moves_while_the_text_goes_elsewhere(generate, model_folder, monkeypatch):
    console = PlainConsole(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr("specdec_core.cli.generate.error_console", lambda: console)
    result = generate("a b c")
    assert result.stdout == text_of(model_folder) + "\n"
    assert re.search(r"prompt 1 of 1 .* \d+%", console.file.getvalue())


def test_a_drafter_changes_no_argmax_token(generate, model_folder):
    drafter = ("--drafter", "{name: echo, token: 2}", "--gamma", "{name: fixed, gamma: 3}")
    result = generate("a b c", "--temperature", "0", *drafter)
    assert result.exit_code == 0, result.output
    assert result.stdout == text_of(model_folder, sampling={"temperature": 0}) + "\n"


def test_prompts_from_standard_input_and_files(generate, model_folder, tmp_path):
    expected = text_of(model_folder) + "\n"
    assert generate("-", input="a b c").stdout == expected
    refused = generate("-", input=b"a\xff")
    assert (refused.exit_code, "is not text: " in refused.stderr) == (2, True)
    (tmp_path / "p.txt").write_text("a b c")
    for option in ("--prompts", "--file"):
        assert generate(option, tmp_path / "p.txt").stdout == expected
    (tmp_path / "p.jsonl").write_text('{"prompt": "a b c"}\n{"prompt": "d"}\n')
    many = generate("--prompts", tmp_path / "p.jsonl").stdout
    assert many.startswith(f"--- prompt 1\n{expected}--- prompt 2\n")


def test_prompts_from_a_table_by_settings_as_in_a_study(generate, model_folder, tmp_path):
    (tmp_path / "p.csv").write_text("question,key\na b c,first\nd,second\n")
    settings = {"file": str(tmp_path / "p.csv"), "columns": {"prompt": "question", "id": "key"}}
    shown = generate("--prompts", json.dumps(settings)).stdout
    assert shown.startswith(f"--- prompt first\n{text_of(model_folder)}\n--- prompt second\n")
    (tmp_path / "p.yaml").write_text("file: p.csv\ncolumn: question\nlimit: 1\n")
    assert generate("--prompts", tmp_path / "p.yaml").stdout == text_of(model_folder) + "\n"
    wrong = generate("--prompts", json.dumps({**settings, "colums": {}}))
    assert wrong.exit_code == 2
    assert "--prompts: unknown key 'colums'. Did you mean 'columns'" in wrong.stderr


def test_a_file_is_a_single_prompt_and_prompts_are_one_per_line(generate, model_folder, tmp_path):
    (tmp_path / "p.txt").write_text("a b c\nd\n")
    assert generate("--prompts", tmp_path / "p.txt").stdout.count("--- prompt") == 2
    assert "--- prompt" not in generate("--file", tmp_path / "p.txt").stdout
    assert "read it with --prompts" in generate("--file", tmp_path / "p.jsonl").stderr


def test_the_target_by_settings_as_in_a_study(generate, model_folder, tmp_path):
    expected = text_of(model_folder, sampling={"temperature": 0}) + "\n"
    settings = {"model": str(model_folder), "attn_implementation": "eager"}
    greedy = ("a b c", "--temperature", "0")
    assert generate(*greedy, "--target", json.dumps(settings), "--device", "cpu").stdout == expected
    (tmp_path / "t.yaml").write_text(f"model: {os.path.relpath(model_folder, tmp_path)}\ndtype: float32\n")
    assert generate(*greedy, "--target", tmp_path / "t.yaml").stdout == expected
    for arguments, message in (
        (
            ("--target", json.dumps({**settings, "dtyp": "float32"})),
            "--target (--model): unknown key 'dtyp'. Did you mean 'dtype'",
        ),
        (("--target", tmp_path / "t.yaml", "--dtype", "bfloat16"), "--dtype: --target sets 'dtype' too"),
        (("--target", "{model: a, trust_remote_code: true}"), "a config runs no code"),
    ):
        result = generate("a b c", *arguments)
        assert result.exit_code == 2, result.output
        assert message in result.stderr


@pytest.fixture
def template(tmp_path):
    """Writes the messages one behind the other, and refuses roles that it does not know."""
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% for message in messages %}{{ 'd ' if message.role == 'system' }}"
        "{{ raise_exception('no tools here') if message.role == 'tool' }}{{ message.content + ' ' }}{% endfor %}"
    )
    return path


def test_a_prompt_as_a_users_message(generate, model_folder, template):
    chat = ("--chat", "--chat-template", template)
    assert generate("a b c", *chat).stdout == text_of(model_folder) + "\n"
    told = generate("c", "--chat-template", template, "--chat", "--system", "a b").stdout
    assert told == text_of(model_folder, prompt="d a b c") + "\n"
    assert told != generate("c", *chat).stdout
    assert generate("-", *chat, input="a b c").stdout == text_of(model_folder) + "\n"


def test_the_models_own_chat_template(generate, model_folder, template, tmp_path):
    folder = tmp_path / "instruct"
    shutil.copytree(model_folder, folder)
    (folder / "chat_template.jinja").write_text(template.read_text())
    result = generate("c", "--model", folder, "--chat", "--system", "a b")
    assert result.stdout == text_of(model_folder, prompt="d a b c") + "\n"


def test_a_file_of_chats_with_references(generate, model_folder, template, tmp_path):
    chat = {"messages": [{"role": "user", "content": "a b c"}], "id": "greeting", "reference": "good day"}
    text = {"prompt": "a b c", "reference": ["x", "y"]}
    (tmp_path / "p.jsonl").write_text(f"{json.dumps(chat)}\n{json.dumps(text)}\n")
    result = generate("--prompts", tmp_path / "p.jsonl", "--chat-template", template)
    expected = text_of(model_folder)
    assert result.stdout == (
        f"--- prompt greeting\n{expected}\n--- reference\ngood day\n"
        f"--- prompt 2\n{expected}\n--- reference\nx\n--- reference\ny\n"
    )
    # A single prompt is for a pipe: its text and nothing else. And --chat leaves a chat as it is.
    (tmp_path / "p.jsonl").write_text(json.dumps(chat))
    assert generate("--prompts", tmp_path / "p.jsonl", "--chat-template", template).stdout == expected + "\n"
    again = generate("--prompts", tmp_path / "p.jsonl", "--chat-template", template, "--chat")
    assert again.stdout == expected + "\n"
    chat["messages"].insert(0, {"role": "system", "content": "b"})
    (tmp_path / "p.jsonl").write_text(json.dumps(chat))
    mixed = generate("--prompts", tmp_path / "p.jsonl", "--chat", "--system", "b")
    assert "prompt 'greeting' begins with a system message" in mixed.stderr


def test_turns_of_a_conversation_follow_each_other(generate, model_folder, template, tmp_path):
    from specdec_core import Decoder, load_model

    turns = {"question_id": 81, "turns": ["a b c", "d", "e f"]}
    (tmp_path / "p.jsonl").write_text(f"{json.dumps(turns)}\n{json.dumps({'prompt': 'a b c'})}\n")
    result = generate("--prompts", tmp_path / "p.jsonl", "--chat-template", template)
    assert result.exit_code == 0, result.output
    chat = Decoder(load_model(model_folder)).chat(template=template.read_text())
    said = [chat.send(text, max_new_tokens=10).text for text in turns["turns"]]
    names = ("81", "81 turn 2", "81 turn 3", "2")
    expected = zip(names, [*said, text_of(model_folder)], strict=True)
    assert result.stdout == "".join(f"--- prompt {name}\n{text}\n" for name, text in expected)


def test_all_prompts_are_checked_before_the_first_is_decoded(generate, tmp_path):
    lines = [json.dumps({"prompt": text, "id": text[0]}) for text in ("a", "b " * 300, "c " * 300)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    result = generate("--prompts", tmp_path / "p.jsonl")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "prompt 'b' has 300 tokens" in result.stderr
    assert "prompt 'c' has 300 tokens" in result.stderr


def test_the_trace_can_be_read_without_colors(generate):
    result = generate("a b c", "--drafter", "echo", "--gamma", "2", "--trace")
    assert result.exit_code == 0, result.output
    assert "   1  " in result.stdout
    assert "[!" in result.stdout
    assert "[+accepted] drafted and accepted" in result.stdout
    assert re.search(
        r"\d+ tokens in \d+ target forward passes .* acceptance rate [\d.]+, .* ended by \w+\.", result.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--temperature", "-1"], "--temperature: input should be greater than or equal to 0; given -1.0."),
        (["a", "--drafter", "ecko"], "--drafter: unknown drafter 'ecko'. Did you mean 'echo'"),
        ([""], "the prompt is empty"),
        ([], "give a prompt or --prompts"),
        (["a", "--prompts", "b"], "not both"),
        (["a", "--chat"], "prompt '1' is a chat, but the tokenizer of"),
        (["a", "--chat-template", "t.jinja"], "--chat-template: no prompt is a chat; add --chat"),
        (["a " * 300], "takes 256"),
        (["a", "--beams", "2"], "--temperature: 1 was given, but beam search takes the best"),
        (["a", "--beams", "2", "--temperature", "0", "--trace"], "--trace: shows how one text grows"),
        (["a", "--constraint", "{regex: '(a'}"], "--constraint: llguidance cannot use this 'regex': "),
    ],
)
def test_what_is_wrong_is_said_with_its_option(generate, arguments, message):
    result = generate(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_drafter_that_breaks_is_said_or_under_strict_raised(generate):
    broken = ("a b c", "--drafter", "{name: echo, breaks: true}")
    result = generate(*broken)
    assert result.exit_code == 1
    assert len(result.stdout.split()) > 1, "no token is lost"
    assert re.search(r"Echo failed at step 0 \(toy_parts.py:\d+\): .*the echo broke", result.stderr)
    assert result.stderr.count("the echo broke") == 1
    result = generate(*broken, "--strict")
    assert result.exit_code == 2
    assert "the echo broke" in result.stderr


def test_a_trace_goes_to_a_file_and_the_text_to_the_terminal(generate, model_folder, tmp_path):
    file = tmp_path / "trace.html"
    options = ("--drafter", "echo", "--gamma", "2", "--temperature", "0")
    result = generate("a b c", *options, "--trace", file)
    assert result.exit_code == 0, result.output
    assert result.stdout == text_of(model_folder, sampling={"temperature": 0}) + "\n"
    page = file.read_text(encoding="utf-8")
    steps = generate("a b c", *options, "--trace").stdout.partition("\n\n")[0].splitlines()
    assert page.count("<section ") == len(steps)
    fates = {"+": "accepted", "-": "rejected", "!": "recovered", "*": "bonus"}
    marks = [fates[mark] for mark in re.findall(r"\[([-+!*])", "".join(steps))]
    assert re.findall(r'<button type="button" class="(\w+)"', page) == marks


def step(draft, accepted, committed):
    return StepReport(
        0,
        (len(draft),),
        Outcome((len(draft),), (accepted,), (committed,), (False,)),
        (draft,),
        0.1,
        0.1,
        0.2,
        (0.0,),
    )


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (step((5, 6), 2, (5, 6, 7)), [(5, "accepted"), (6, "accepted"), (7, "bonus")]),
        (step((5, 6, 8), 1, (5, 7)), [(5, "accepted"), (6, "rejected"), (7, "recovered")]),
        (step((), 0, (7,)), [(7, "bonus")]),
        (step((5, 6), 1, (5,)), [(5, "accepted")]),
        (
            replace(step((5, 6), 1, (5, 7, 8, 9)), forced=((2, 3),)),
            [(5, "accepted"), (6, "rejected"), (7, "recovered"), (8, "forced"), (9, "forced")],
        ),
    ],
)
def test_what_became_of_each_token(report, expected):
    assert list(fates(report)) == expected


def test_beams_are_shown_with_their_scores(generate):
    beams = ("--temperature", "0", "--beams", "3", "--num-return-sequences", "2", "--early-stopping", "never")
    plain = generate("a b c", *beams)
    assert plain.exit_code == 0, plain.output
    assert len(re.findall(r"^\[-\d+\.\d{3}\] ", plain.stdout, re.MULTILINE)) == 2
    assert "9 target forward passes for 9 steps of beam search" in plain.stderr
    drafter = ("--drafter", "{name: echo, token: 2}", "--gamma", "2", "--draft-beams", "4")
    drafted = generate("a b c", *beams, *drafter)
    assert drafted.stdout == plain.stdout


def test_penalties_biases_and_bad_words_shape_the_text(generate, model_folder):
    options = "--presence-penalty 0.5 --frequency-penalty 2 --logit-bias {'7':9} --bad-words g --min-new-tokens 10"
    result = generate("a b c", "--temperature", "0", *options.split())
    sampling = {"presence_penalty": 0.5, "frequency_penalty": 2, "logit_bias": {7: 9}, "bad_words": ["g"]}
    expected = text_of(model_folder, sampling={"temperature": 0, **sampling}, min_new_tokens=10)
    assert result.stdout == expected + "\n", result.stderr


def test_a_constraint_shapes_the_text_and_its_forced_tokens_are_marked():
    arguments = ["generate", "x = ", "--constraint", "{regex: '(yes|no), sir'}", "--trace"]
    result = run_command(*arguments)
    assert result.exit_code == 0, result.output
    assert re.search(r"\[=,\]\[= s\]", result.stdout)
    assert "[=forced] the only token that the constraint allows" in result.stdout
    assert "ended by stop" in result.stdout
