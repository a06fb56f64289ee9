"""The forecast of memory, and batches that it does not hold."""

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.errors import OutOfMemoryError
from specdec_core.interface.trainer import NoProgress
from specdec_core.models import ModelSession, load_model, wrap_model
from specdec_core.models.inflation import inflate
from specdec_core.study import load_study
from specdec_core.study.memory import memory_needs
from specdec_core.study.run.runner import run_study
from tests.commands import run_command
from tests.models.hybrids import hybrid
from tests.multimodal import build

STUDY = """\
target: {{model: {target}, packed: false, dtype: float32}}
prompts: [a b c, d e, f, g h i]
generation: {{max_new_tokens: 12, ignore_eos: true}}
batch_size: 4
repeats: 1
runs:
  - {{name: echo, drafter: echo, gamma: 2}}
"""


@pytest.fixture
def study(tmp_path):
    def made(target="builtin:target", more="", text=STUDY):
        path = tmp_path / "study.yaml"
        path.write_text(text.format(target=target) + more)
        return path

    return made


class Full:
    """Memory that does not hold passes over more than some rows."""

    def __init__(self, monkeypatch, rows, error=None):
        forward = ModelSession.forward

        def limited(session, uncached, *arguments, **named):
            self.sizes.append(len(uncached))
            if len(uncached) > rows:
                raise error or torch.OutOfMemoryError("CUDA out of memory.")
            return forward(session, uncached, *arguments, **named)

        self.sizes = []
        monkeypatch.setattr(ModelSession, "forward", limited)


@pytest.mark.parametrize(
    "name", ["builtin:target", "builtin:t5-target", "builtin:target, inflate: {layers: 2, width: 96}"]
)
def test_weights_and_caches_are_those_that_a_model_takes(study, name):
    text = STUDY.replace("drafter: echo, gamma: 2", "drafter: prompt-lookup, gamma: 2")
    plain, drafted = memory_needs(load_study(study(name, text=text)))
    reference, _, inflated = name.partition(",")
    loaded = load_model(reference, packed=False)
    loaded = inflate(loaded, 2, 96) if inflated else loaded
    weights = sum(weight.nbytes for weight in loaded.model.parameters())
    if loaded.encoder_decoder:
        # Its config shares the output embedding, which its file holds apart.
        weights -= loaded.model.get_output_embeddings().weight.nbytes
    assert plain.weights == drafted.weights == weights
    assert plain.sequences == 4
    assert drafted.tokens == plain.tokens + 2
    source = [[5] * plain.tokens] * 4 if loaded.encoder_decoder else None
    session = ModelSession(loaded, 4, plain.tokens, source, vocab_size=loaded.vocab_size)
    session.forward([[5, 6, 7]] * 4)
    buffers = sum(buffer.nbytes for buffer in session._cache.buffers())
    if loaded.encoder_decoder:
        buffers *= 2  # as many keys and values of the source
    # The cache has one slot more, for padding.
    assert plain.caches == pytest.approx(buffers, rel=1.5 / plain.tokens)
    assert drafted.scores > plain.scores > 0


@pytest.mark.parametrize("family", ["nemotron_h", "falcon_h1", "mamba2"])
def test_recurrent_layers_keep_no_keys(study, family, tmp_path):
    model = hybrid(family)
    model.save_pretrained(tmp_path / "model")
    text = STUDY.replace("[a b c, d e, f, g h i]", "{{tokens: [[3, 4, 5]]}}").replace(
        "name: echo, drafter: echo", "drafter: random"
    )
    plain, _ = memory_needs(load_study(study("model", text=text)))
    session = ModelSession(wrap_model(model), 1, plain.tokens)
    session.forward([[3, 4, 5]])
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in session._cache._slots())
    assert plain.caches == pytest.approx(kept, rel=1.5 / plain.tokens)


def test_a_model_with_images_is_counted_with_their_encoder(study, tmp_path):
    model = build("mistral3")
    model.save_pretrained(tmp_path / "model")
    text = STUDY.replace("[a b c, d e, f, g h i]", "{{tokens: [[3, 4, 5]]}}").replace(
        "drafter: echo", "drafter: random"
    )
    (plain, _) = memory_needs(load_study(study("model", text=text)))
    assert plain.weights == sum(weight.nbytes for weight in model.parameters())


def test_a_draft_model_is_added(study):
    text = STUDY.replace("drafter: echo", "drafter: {{name: transformer, model: builtin:drafter, packed: false}}")
    plain, drafted = memory_needs(load_study(study(text=text)))
    weights = sum(weight.nbytes for weight in load_model("builtin:drafter", packed=False).model.parameters())
    assert drafted.weights - plain.weights == weights
    assert drafted.caches > plain.caches


def test_validate_shows_the_forecast_and_refuses_what_does_not_fit(study, monkeypatch):
    text = STUDY.replace("drafter: echo", "drafter: prompt-lookup")
    shown = run_command("validate", str(study(text=text)), "--memory", env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "baseline" in shown.output.split("Memory")[1]
    monkeypatch.setattr("specdec_core.study.memory.available_memory", lambda _: 1000)
    short = run_command("validate", str(study(text=text)), "--memory", env={"COLUMNS": "200"})
    assert short.exit_code != 0
    assert "batch_size" in short.output


@pytest.mark.parametrize(
    "error", [None, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_a_decoder_says_what_did_not_fit(monkeypatch, error):
    decoder = Decoder(load_model("builtin:target", packed=False), temperature=0)
    Full(monkeypatch, 1, error)
    with pytest.raises(OutOfMemoryError, match=r"cpu.* 2 sequences of up to \d+ tokens"):
        decoder.generate(["import os", "def f"], max_new_tokens=4)
    assert decoder.generate("import os", max_new_tokens=4)[0].tokens


def test_other_errors_are_not_called_a_lack_of_memory(monkeypatch):
    decoder = Decoder(load_model("builtin:target", packed=False), temperature=0)
    Full(monkeypatch, 0, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        decoder.generate("import os", max_new_tokens=4)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_fails_its_run_or_is_decoded_in_halves(study, monkeypatch):
    text = STUDY.replace("drafter: echo", "drafter: prompt-lookup")

    def repeats(result):
        return [result.repeats.of_run(None, name)[1] for name in ("baseline", "echo")]

    whole = run_study(load_study(study(text=text)), NoProgress())
    full = Full(monkeypatch, 2)
    with pytest.raises(OutOfMemoryError, match="batch of 4"):  # of the baseline, without which nothing is compared
        run_study(load_study(study(text=text)), NoProgress())
    halved = run_study(load_study(study(text=text, more="auto_find_batch_size: true\n")), NoProgress())
    assert not halved.failed
    assert 4 in full.sizes
    assert [one.outputs for one in repeats(halved)] == [one.outputs for one in repeats(whole)]
    assert all(any("did not fit in memory" in note for note in one.notes) for one in repeats(halved))
