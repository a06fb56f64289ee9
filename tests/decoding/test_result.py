"""Results: as a sequence, as text, and as HTML in a notebook."""

import re
from html import unescape

import pytest

from specdec_core import BatchResult, Decoder, Generation, Metrics, TraceObserver, load_model
from specdec_core.decoding.guard import PluginFailure
from specdec_core.models import wrap_model
from tests.tiny import tiny_model
from tests.toys import CountingDrafter, TableDrafter

V = 40


@pytest.fixture(scope="module")
def plain():
    """A target without a tokenizer."""
    return wrap_model(tiny_model("llama", V))


@pytest.fixture(scope="module")
def spelled():
    """A target with a tokenizer."""
    return load_model("builtin:target")


def shown(html):
    """Return the text that a reader sees in the boxes."""
    boxes = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", box)).replace("⏎\n", "\n") for box in boxes]


def test_a_result_is_a_sequence_of_its_generations(plain):
    result = Decoder(plain).generate([[3, 4], [5]], max_new_tokens=3, ignore_eos=True)
    assert len(result) == 2
    assert list(result) == list(result.sequences)
    assert result[1].prompt == (5,)
    assert result[-1:] == (result[1],)
    assert [one.finish_reason for one in result] == ["length", "length"]
    with pytest.raises(IndexError):
        result[2]


def test_a_single_result_has_the_text_and_tokens(plain, spelled):
    result = Decoder(spelled, temperature=0).generate("import os\n", max_new_tokens=4)
    assert result.text == result[0].text
    assert result.tokens == result[0].tokens
    assert spelled.tokenizer.decode(result.tokens) == result.text
    assert Decoder(plain).generate([3], max_new_tokens=2).text is None


@pytest.mark.parametrize("name", ["text", "tokens"])
def test_the_text_of_several_is_refused(plain, name):
    result = Decoder(plain).generate([[3], [4]], max_new_tokens=2)
    with pytest.raises(TypeError, match=rf"2 sequences, so it has no single {name}; index it: result\[0\].{name}"):
        getattr(result, name)


def test_a_result_prints_its_text_and_metrics(plain, spelled):
    result = Decoder(spelled, "prompt-lookup", gamma=4, temperature=0).generate("import os\n", max_new_tokens=8)
    assert str(result) == f"{result.text}\n\n{result.metrics}"
    several = Decoder(plain).generate([[3], [4]], max_new_tokens=2, ignore_eos=True)
    assert str(several).startswith(f"[0] {several[0].tokens[0]} {several[0].tokens[1]}\n[1] ")
    assert "acceptance rate" not in str(several)


@pytest.mark.parametrize("drafter", [CountingDrafter, TableDrafter])
def test_origins_are_those_of_the_steps(plain, drafter):
    trace = TraceObserver()
    decoder = Decoder(plain, drafter(V), gamma=3, strict=True)
    result = decoder.generate([[3, 4], [5]], max_new_tokens=20, ignore_eos=True, observers=[trace])
    for row, one in enumerate(result):
        expected = []
        for report in trace.reports:
            accepted, drafted = report.outcome.accepted[row], report.outcome.drafted[row]
            last = "bonus" if accepted == drafted else "recovered"
            ends = len(report.outcome.committed[row]) > accepted
            expected += ["accepted"] * accepted + [last] * ends
        assert list(one.origins) == expected
        assert len(one.origins) == len(one.tokens)
    counted = sum(one.origins.count("accepted") for one in result)
    assert counted == result.metrics.accepted


def test_html_shows_the_text_token_by_token(spelled):
    prompt = "# Καλημέρα 🙂 日本語\n"
    result = Decoder(spelled, "random", gamma=3).generate(prompt, max_new_tokens=40, ignore_eos=True, seed=3)
    html = result._repr_html_()
    assert shown(html) == [result.text]
    classes = re.findall(r'<span class="(\w+)" title', html)
    assert classes
    assert set(classes) <= {"accepted", "recovered", "bonus"}
    assert classes[0] == result[0].origins[0]
    assert str(result.metrics) in html


def test_a_character_of_several_tokens_is_shown_whole(spelled):
    tokens = tuple(spelled.tokenizer("x = '🙂'")["input_ids"])
    origins = tuple(("accepted", "bonus")[n % 2] for n in range(len(tokens)))
    text = spelled.tokenizer.decode(tokens)
    one = Generation((3,), tokens, text, "length", origins, spelled.tokenizer)
    assert shown(one._repr_html_()) == [text]
    assert text == "x = '🙂'"


def test_html_escapes_what_was_generated(spelled):
    text = "</pre><script>alert(1)</script> &amp;"
    tokens = tuple(spelled.tokenizer(text)["input_ids"])
    for origins in (("accepted",) * len(tokens), ("bonus",) * len(tokens)):
        one = Generation((3,), tokens, text, "length", origins, spelled.tokenizer)
        html = BatchResult((one,), Metrics(), (PluginFailure("P", 0, "<b>&"),))._repr_html_()
        assert "<script>" not in html
        assert "<b>" not in html
        assert shown(html) == [text]
