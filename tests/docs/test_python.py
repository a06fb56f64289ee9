"""The Python of the pages runs."""

import re
import runpy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_layers import MtpModel

from specdec_core import Decoder, generate_with
from specdec_core.interface import PluginConfig
from specdec_core.models import wrap_model
from specdec_core.offline.record.store import read_record
from specdec_core.sampling.logits import LogitsToProbs
from specdec_core.testing import DrafterKit
from specdec_core.testing.harness.tiny_target import uncached_logits
from tests.commands import run_command
from tests.conformance import failures, kit_of
from tests.docs.pages import PAGES, ROOT, blocks, name, outputs
from tests.multimodal import IMAGE, build, prompts
from tests.serving.vllm_runner import Runner, vllm_config
from tests.tiny import tiny_model
from tests.whisper import AUDIO, ENGLISH, NO_TIMESTAMPS, START, TRANSCRIBE, distilled, speech

PYTHON = blocks("python", "py", "pycon")
OWN = [block for block in PYTHON if block.source is None]
EXAMPLES = ROOT / "docs" / "examples"


LONG = ("docs/python.md", "docs/replay.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
        for page in sorted({name(block.page) for block in OWN})
    ],
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate((block for block in OWN if name(block.page) == page), 1):
        exec(compile(block.text, f"{page}, block {number}", "exec"), namespace)  # the pages tell readers to run it


@pytest.mark.parametrize("gamma", [1, 5])
def test_the_thinking_budget_gives_the_text_of_plain_generate(gamma):
    budget = runpy.run_path(str(EXAMPLES / "thinking_budget.py"))["ThinkingBudget"](4, 5, 6)
    model = tiny_model("llama", 8)
    ids, settings = torch.tensor([[3, 4, 6]]), {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    plain = model.generate(ids, logits_processor=[budget], **settings)
    assert plain[0].tolist().index(5) == 8
    drafted = generate_with(drafter="prompt-copy", gamma=gamma)
    assert model.generate(ids, logits_processor=[budget], custom_generate=drafted, **settings).equal(plain)


def test_no_piece_of_python_is_overlooked():
    fence = re.compile(r"^\s*(?:```+|~~~+)\s*\{?\s*\.?(?:py|python|python3|pycon)\b", re.MULTILINE)
    assert sum(len(fence.findall(page.read_text(encoding="utf-8"))) for page in PAGES) == len(PYTHON)


def test_every_quoted_file_is_run_by_a_test():
    quoted = {block.source for block in PYTHON if block.source is not None and block.source.startswith("docs/")}
    assert len(quoted) > 20
    tests = [*(ROOT / "tests" / "docs").glob("*.py"), *(ROOT / "tests" / "testing").glob("test_kit*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in tests)
    names = {re.sub(r"^docs/examples/(specdec-)?([\w-]+).*", r"\2", path) for path in quoted}
    assert not [name for name in names if name not in text]


@pytest.mark.parametrize("file", ["own_drafter.py", pytest.param("user_ngrams.py", marks=pytest.mark.slow)])
def test_an_example_prints_what_is_shown(capsys, file):
    runpy.run_path(str(EXAMPLES / file), run_name="__main__")
    shown = [each.text for each in outputs() if each.language == f"python docs/examples/{file}"]
    assert [capsys.readouterr().out.strip("\n")] == shown


@pytest.mark.skipif(not hasattr(MtpModel, "forward_layer"), reason="needs transformers 5.20")
def test_the_lines_with_qwen_give_the_targets_own_tokens(hub):
    """docs/examples/qwen.py, of the README and the first page."""
    ran: dict[str, Any] = {}
    exec(hub.replace((EXAMPLES / "qwen.py").read_text(encoding="utf-8")), ran)
    model, result = ran["target"].model, ran["result"]
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    ids = torch.tensor([ran["target"].tokenizer("The capital of France is")["input_ids"]])
    alone = model.generate(ids, max_new_tokens=64, do_sample=False)
    assert result.tokens == tuple(alone[0, ids.shape[1] :].tolist())
    assert 0 < result.metrics.alpha < 1


def test_the_lines_with_an_image_give_the_tokens_of_plain_generate(monkeypatch):
    """docs/examples/images.py, with what its processor would give."""
    model, inputs = build("qwen3_vl"), prompts("qwen3_vl", [[5, IMAGE, 6, 7]])
    processor = SimpleNamespace(apply_chat_template=lambda *_, **__: inputs, decode=lambda ids, **_: ids)
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", lambda _: processor)
    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", lambda _: model)
    ran = runpy.run_path(str(EXAMPLES / "images.py"))
    assert ran["ids"].equal(model.generate(**inputs, max_new_tokens=64, do_sample=False))


class Processor:
    """What the processor of Whisper does in docs/examples/whisper.py, with ids in the place of texts."""

    def __call__(self, audio: torch.Tensor, **_: Any) -> Any:
        return transformers.BatchFeature({"input_features": audio})

    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda _: [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS])
    decode = staticmethod(lambda ids, **_: list(ids))
    batch_decode = staticmethod(lambda ids, **_: ids.tolist())


def test_the_lines_with_whisper_give_the_tokens_of_plain_generate(monkeypatch, tmp_path):
    """docs/examples/whisper.py."""
    speech().save_pretrained(tmp_path / "large")
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", lambda _: Processor())
    monkeypatch.setattr("transformers.audio_utils.load_audio", lambda *_, **__: AUDIO[:1])
    text = (EXAMPLES / "whisper.py").read_text(encoding="utf-8")
    text = text.replace("openai/whisper-large-v3", str(tmp_path / "large"))
    ran: dict[str, Any] = {}
    exec(text.replace("distil-whisper/distil-large-v3", distilled(speech(), tmp_path / "distilled")), ran)
    model = ran["model"]
    assert ran["ids"].equal(model.generate(AUDIO[:1], language="en"))
    assert ran["decoder"].drafter.loaded.model.get_encoder() is model.get_encoder()
    settings = {"decoder_input_ids": torch.tensor([ran["begin"]]), "max_length": 48, "suppress_tokens": None}
    plain = transformers.GenerationMixin.generate(model, AUDIO[:1], do_sample=False, **settings)
    assert ran["result"].tokens == tuple(plain[0, 4:].tolist())


def test_the_proposers_of_the_page_on_serving_draft_in_vllm():
    written = runpy.run_path(str(EXAMPLES / "vllm_proposer.py"))
    drafts = {"Proposer": (4, 1, 2), "Repeater": (3, 3, 3)}
    for name_of_class, expected in drafts.items():
        runner = Runner(written[name_of_class](vllm_config(50, gamma=3)), gamma=3)
        runner.add("a", [1, 2, 3, 4, 1, 2], [3])
        runner.step(["a"])
        assert runner.asked[0].draft == expected


@pytest.mark.slow
def test_the_example_of_the_page_on_state_passes_the_kit():
    drafter = runpy.run_path(str(EXAMPLES / "user_ngrams.py"))["UserNgrams"]
    assert not failures(kit_of(DrafterKit, lambda target: drafter(PluginConfig(), target)))


@pytest.mark.slow
def test_the_example_of_the_page_on_trees_drafts_trees(capsys):
    ran = runpy.run_path(str(EXAMPLES / "trees.py"), run_name="__main__")
    assert all(report.outcome.parents for report in ran["trace"].reports[:-1])
    assert "32 tokens in" in capsys.readouterr().out


def test_the_example_of_the_page_on_beams_saves_passes(capsys):
    ran = runpy.run_path(str(EXAMPLES / "beams.py"), run_name="__main__")
    plain = Decoder(ran["target"], temperature=0).generate(
        ran["result"][0].prompt, beams=4, num_return_sequences=2
    )
    assert ran["result"].sequences == plain.sequences
    assert ran["result"].metrics.target_calls < plain.metrics.target_calls
    assert "2 passes for 7 steps of beam search" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_the_page_on_structured_output_gives_a_book(capsys):
    ran = runpy.run_path(str(EXAMPLES / "structured_output.py"), run_name="__main__")
    assert 1900 <= ran["book"].year <= 2030
    assert [one.finish_reason for one in ran["result"]][:2] == ["stop", "stop"]
    assert "tokens forced" in capsys.readouterr().out


@pytest.fixture(scope="module")
def coming_from():
    """What the example of the page on other libraries defines."""
    return runpy.run_path(str(EXAMPLES / "coming_from.py"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["assisted", "lookup"])
def test_greedy_tokens_are_those_of_assisted_generation(coming_from, way):
    target, prompts = coming_from["target"], coming_from["prompts"]
    helper = {"assistant_model": coming_from["assisted"].drafter.loaded.model}
    helper = helper if way == "assisted" else {"prompt_lookup_num_tokens": 10}
    result = coming_from[way].generate(prompts, max_new_tokens=16)
    for prompt, sequence in zip(prompts, result, strict=True):
        ids = torch.tensor([target.tokenizer(prompt)["input_ids"]])
        settings = {"do_sample": False, "max_new_tokens": 16}
        written = target.model.generate(ids, attention_mask=torch.ones_like(ids), **settings, **helper)
        assert sequence.tokens == tuple(written[0, ids.shape[1] :].tolist())


@pytest.mark.slow
def test_what_the_example_logs_is_what_the_target_says(tmp_path, monkeypatch):
    """docs/examples/log_generate.py: p of transformers' own generate is ours."""
    monkeypatch.chdir(tmp_path)
    ran = runpy.run_path(str(EXAMPLES / "log_generate.py"), run_name="__main__")
    options = "--target builtin:target --temperature 0.8 --top-p 0.95 --output logged --quiet"
    result = run_command("record", "--import", "log.jsonl", *options.split())
    assert result.exit_code == 0, result.output
    (part,) = read_record("logged").parts
    target, to_probs = wrap_model(ran["model"]), LogitsToProbs(part.header.sampling)
    assert len(part) == 16
    for text in part:
        logits = uncached_logits(target, [[*text.prompt, *text.tokens.tolist()]])[0, len(text.prompt) - 1 : -1]
        p = to_probs(logits).gather(1, torch.tensor(text.tokens)[:, None])[:, 0]
        assert text.probabilities == pytest.approx(p.numpy(), abs=1e-4)
