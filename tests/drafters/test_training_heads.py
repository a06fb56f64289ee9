"""`specdec train heads`: what each head is held against, what is measured, and what comes of a training."""

import json
from dataclasses import replace

import pytest
import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.settings import GenerationSettings
from specdec_drafters.heads.drafter import (
    Heads,
    HeadsCard,
    HeadsDrafter,
    HeadsShape,
    head_logits,
    read_heads,
    write_heads,
)
from specdec_drafters.heads.trainer import Distillation, HeadsTrainer, drafted, read_rows
from specdec_drafters.settings import HeadsConfig, HeadsTrainerConfig
from specdec_drafters.training.drafts import TargetReading, draft_scores, drafts_loss
from specdec_drafters.training.losses import cross_entropy, distillation, overlap
from specdec_drafters.training.rows import Rows, pad_rows
from specdec_drafters.training.sources import gather
from tests.drafters.training.support import Recorder, short_configs, trained
from tests.toys import Gamma

V, K = 40, 3


def moved(heads: Heads, scale: float = 0.5) -> Heads:
    """Return the heads with last layers that are not zero any more."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in heads.outer.values():
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    return heads


config_for = short_configs(HeadsTrainerConfig, "out/heads.safetensors", "gpt2", steps=30, heads=K)


# A reading of three ragged rows, the second with a prompt of two tokens, the third too short for a third head.
D, E = 6, 5
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6, 5, 4, 0], [3, 1, 4, 1, 0, 0, 0]])
COUNTS = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)
VOCABULARY = 10


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


HIDDEN = normal(3, 7, D, seed=1)
OUTPUT, INPUT = normal(VOCABULARY, D, seed=2), normal(VOCABULARY, E, seed=3)
READING = TargetReading(Rows(TOKENS, COUNTS), HIDDEN, HIDDEN @ OUTPUT.T)


def pairs_by_hand(heads: Heads):
    """Yield head, its logits, the target's logits and the token: of every position that counts, one by one."""
    for row in range(3):
        for t in range(7):
            if t + 2 > 6 or not (COUNTS[row, t + 1] and COUNTS[row, t + 2]):
                continue
            embedded = INPUT[TOKENS[row, t + 1]][None] if heads.shape.reads_token else None
            states = heads(HIDDEN[row, t][None], embedded)[0]
            for head in range(heads.shape.heads):
                guessed = t + 2 + head
                if guessed <= 6 and COUNTS[row, guessed]:
                    yield head, t, row, states[head] @ OUTPUT.T, HIDDEN[row, guessed - 1] @ OUTPUT.T, guessed


def heads_for(reads_token=True) -> Heads:
    return moved(Heads(HeadsShape(K, D, 4, E if reads_token else 0)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("share", [None, 0.4, 1.0])
@pytest.mark.parametrize("reads_token", [True, False])
def test_the_mean_loss_and_its_gradients_are_those_of_every_position_by_hand(reads_token, share, temperature):
    heads, slow = heads_for(reads_token), heads_for(reads_token)
    steps = drafted(heads, READING, OUTPUT, INPUT if reads_token else None)
    (found := drafts_loss(steps, share, temperature)).backward()

    expected = []
    for _, _, row, logits, p_logits, guessed in pairs_by_hand(slow):
        if share is None:
            loss = cross_entropy(logits[None] / temperature, TOKENS[row, guessed][None])
        else:
            loss = distillation(p_logits[None], logits[None], share, temperature)[0]
        expected.append(loss)
    (mean := torch.stack(expected).mean()).backward()
    torch.testing.assert_close(found, mean, atol=1e-5, rtol=1e-4)
    for (name, weight), other in zip(heads.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(
            weight.grad, other.grad, atol=1e-5, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("reads_token", [True, False])
def test_scores_are_those_of_every_position_by_hand(reads_token):
    heads = heads_for(reads_token)
    scores = draft_scores(drafted(heads, READING, OUTPUT, INPUT if reads_token else None), K, 0.8)
    indices, overlaps, agreement, kept = ([0.0] * K for _ in range(4))
    reached: dict[tuple[int, int], float] = {}
    with torch.no_grad():
        for head, t, row, logits, p_logits, guessed in pairs_by_hand(heads):
            beta = float(overlap(p_logits, logits, 0.8))
            p, q = (p_logits / 0.8).softmax(-1), (logits / 0.8).softmax(-1)
            indices[head] += 1
            overlaps[head] += beta
            agreement[head] += bool(p.argmax() == q.argmax())
            before = reached.get((row, t), 1.0)
            kept[head] += before * beta
            token = TOKENS[row, guessed]
            reached[row, t] = before * min(1.0, float(q[token] / p[token]))
    assert scores.alpha == pytest.approx([a / b for a, b in zip(overlaps, indices, strict=True)], abs=1e-5)
    assert scores.greedy_alpha == pytest.approx([a / b for a, b in zip(agreement, indices, strict=True)])
    shares = [a / b for a, b in zip(kept, indices, strict=True)]
    assert scores.accepted_up_to == pytest.approx(shares, abs=1e-5)
    assert scores.block_efficiency == pytest.approx(1 + sum(shares), abs=1e-5)
    double = scores + scores
    assert double.alpha == pytest.approx(scores.alpha)
    assert double.positions.tolist() == [2 * n for n in indices]


def test_rows_with_nothing_to_guess():
    short = TargetReading(Rows(TOKENS[:, :2], COUNTS[:, :2]), HIDDEN[:, :2], READING.logits[:, :2])
    given = replace(READING, rows=Rows(TOKENS, torch.zeros_like(COUNTS)))
    assert not short.drafted
    assert not drafts_loss(drafted(heads_for(), given, OUTPUT, INPUT), 0.5, 1.0)
    for reading in (short, given):
        assert draft_scores(drafted(heads_for(), reading, OUTPUT, INPUT), K, 1.0).block_efficiency == 1


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "t5", "bart"])
def test_a_reading_predicts_what_the_target_predicts(targets, family):
    target = targets(family)
    rows, sources = [[0, 5, 6, 7, 8], [0, 9, 1]], [[5, 6, 7], [8, 9]]
    reading = read_rows(target, pad_rows(rows, [1, 1], sources if target.encoder_decoder else None))
    for number, (row, source) in enumerate(zip(rows, sources, strict=True)):
        ids = torch.tensor([row])
        names = {"input_ids": ids}
        if target.encoder_decoder:
            names = {"input_ids": torch.tensor([source]), "decoder_input_ids": ids}
        with torch.inference_mode():
            logits = target.model(**names).logits[0]
        torch.testing.assert_close(reading.logits[number, : len(row)], logits, atol=1e-4, rtol=1e-4)
        found = head_logits(reading.states[number, : len(row)], target.features.output_embeddings)
        bias = getattr(target.model, "final_logits_bias", 0)
        torch.testing.assert_close(found + bias, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", pytest.param("t5", marks=pytest.mark.slow)])
def test_decoding_keeps_as_many_tokens_as_the_scores_say(targets, config_for, tmp_path, family):
    """Tokens a call, expected from text alone, are those of a run: heads, hidden states and positions agree."""
    target = targets(family)
    features = target.features
    heads = moved(Heads(HeadsShape(K, features.hidden_size, 16, features.input_embeddings.shape[1])), scale=0.1)
    path = tmp_path / "heads.safetensors"
    card = HeadsCard(
        **vars(heads.shape), vocab_size=target.vocab_size, target="tiny", fingerprint=features.fingerprint()
    )
    write_heads(path, heads, card, torch.float32)
    drafter = HeadsDrafter(HeadsConfig(model=str(path)), target.info())
    config = config_for(family, held_out=2500, samples=10)
    material = gather(config, target, Recorder())
    scores = Distillation(config, target, heads, material, torch.float32).scores()

    decoder = Decoder(target, drafter, gamma=Gamma(K), strict=True)
    prompts = [[0]] * 200
    if target.encoder_decoder:
        held = material.held_out
        pairs = zip(held.sources, held.source_mask, strict=True)
        prompts = [source[mask].tolist() for source, mask in pairs][:60]
    result = decoder.generate(prompts, GenerationSettings(max_new_tokens=24, ignore_eos=True, seed=3))
    drafting = result.metrics.row_steps - len(prompts)  # the first step of a row has no hidden state
    measured = 1 + result.metrics.accepted / drafting
    assert scores.block_efficiency > 1.2
    assert measured == pytest.approx(scores.block_efficiency, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "loss"), [("bart", "kl"), ("gpt2", "tv"), ("bart", "kl-then-tv")])
def test_every_loss_raises_alpha_and_the_target_stays(targets, config_for, family, loss):
    first, last = trained(
        HeadsTrainer(config_for(family, loss=loss, steps=60, learning_rate=3e-3)), targets(family)
    )
    assert last["alpha_1"] > first["alpha_1"] + 0.02
    assert last["block_efficiency"] > first["block_efficiency"] + 0.02


@pytest.mark.parametrize("reads_token", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_is_written_drafts_for_this_target(targets, config_for, reads_token):
    config = config_for(reads_token=reads_token, width=8)
    report = HeadsTrainer(config).train(Recorder())
    assert report.written == (config.output, config.output.with_name("heads.curve.jsonl"))
    assert {path.name for path in config.output.parent.iterdir()} == {"heads.safetensors", "heads.curve.jsonl"}
    assert report.usage == f'{{name: heads, model: "{config.output}"}}'
    heads, card = read_heads(config.output)
    assert heads.shape == HeadsShape(K, 32, 8, 32 if reads_token else 0)
    assert card.facts["steps"] == 30
    assert card.facts["samples"] == "1500"
    assert report.facts["alpha of each head after"] == card.facts["alpha of each head after"]
    assert len(str(card.facts["alpha of each head after"]).split(", ")) == K
    points = [json.loads(line) for line in report.written[1].read_text().splitlines()]
    assert [point["step"] for point in points] == [0, 30]
    assert points[1]["alpha_1"] > points[0]["alpha_1"]
    drafter = HeadsDrafter(HeadsConfig(model=str(config.output)), targets("gpt2").info())
    result = Decoder(targets("gpt2"), drafter, gamma=Gamma(K), strict=True).generate(
        [[0]] * 4, GenerationSettings(max_new_tokens=20, ignore_eos=True)
    )
    assert result.metrics.accepted > 0


def test_weights_that_are_passed_on_do_not_name_the_home_folder(config_for, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = config_for("t5", steps=1, samples=300, held_out=100)
    HeadsTrainer(config).train(Recorder())
    assert read_heads(config.output)[1].facts["sources"] == "~/sources.jsonl"
    assert str(tmp_path).encode() not in config.output.read_bytes()
