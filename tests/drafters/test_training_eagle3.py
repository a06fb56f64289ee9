"""`specdec train eagle3`: drafts in training are those of decoding, and what comes of a training."""

import json

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import ConfigError, ModelError
from specdec_core.interface.settings import GenerationSettings
from specdec_drafters.eagle3.checkpoint import read_eagle3
from specdec_drafters.eagle3.drafter import Eagle3Drafter, loaded_head
from specdec_drafters.eagle3.trainer import (
    Eagle3Trainer,
    head_scores,
    masked,
    masked_loss,
    new_head,
    read_target,
    unrolled,
    unrolled_loss,
)
from specdec_drafters.settings import Eagle3Config, Eagle3TrainerConfig
from specdec_drafters.training.losses import distillation, overlap
from specdec_drafters.training.rows import pad_rows
from tests.drafters.support import SeededRequest, info_for
from tests.drafters.training.support import Recorder, short_configs, trained
from tests.toys import Gamma

V, K = 40, 3
LAYERS = (0, 1, 2)
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [9, 8, 7, 6, 5, 4], [3, 1, 4, 1]]
PROMPTS = [1, 3, 1]
IDS = torch.arange(1, V, 2)


SETTINGS = {"unrolled": K, "aux_layers": LAYERS, "learning_rate": 1e-2, "saved_as": "float32"}
config_for = short_configs(Eagle3TrainerConfig, "out", **SETTINGS)


def head_for(target, seed=0, **kind):
    """A head whose drafts depend on all that it reads."""
    head = new_head(target, LAYERS, IDS, seed, **kind)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if name != "embed_tokens.weight":
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return head


class Scripted(SeededRequest):
    """A request that answers every draw with the next token of a text, and keeps the logits."""

    def __init__(self, text, length, states):
        super().__init__([text[:length]], [K], hidden_states=states)
        self.text, self.at, self.logits = text, length, []

    def sample(self, logits):
        self.logits.append(logits[0])
        token = torch.tensor([self.text[self.at]] if self.at < len(self.text) else [0])
        self.at += 1
        self.drawn.append(token)
        self.q.append(logits.softmax(-1))
        return token


def test_drafts_in_training_are_those_of_decoding(targets):
    """From every position that counts, and at every depth, the logits are those of a decoder's draft."""
    target = targets()
    head, reading = head_for(target), read_target(target, pad_rows(TEXTS, PROMPTS), LAYERS, torch.device("cpu"))
    steps = list(unrolled(head, reading, K))
    compared = 0
    for row, text in enumerate(TEXTS):
        for t in range(max(PROMPTS[row] - 1, 0), len(text) - 2):
            drafted = drafts_of(drafter_of(head), reading, row, t, K)
            for position in range(min(K, len(text) - t - 2)):
                step = steps[position]
                index = int(step.where.flatten()[: row * step.where.shape[1] + t].sum())
                assert step.where[row, t]
                found = torch.full((V,), float("-inf")).index_copy(0, head.token_ids, step.logits[index].detach())
                torch.testing.assert_close(found, drafted[position], atol=1e-4, rtol=1e-4)
                assert step.tokens[index] == text[t + 2 + position]
                torch.testing.assert_close(step.p_logits[index], reading.logits[row, t + 1 + position])
                compared += 1
    assert compared == sum(int(step.where.sum()) for step in steps) == 18


def drafts_of(drafter, reading, row, start, count):
    """Return the logits of a decoder's draft that begins behind token `start` + 1 of a row, `[count, V]`."""
    text = TEXTS[row]
    states = reading.states[row, : len(text)].split(drafter.head.shape.target_size, -1)
    carried = {layer: state[None, : start + 1] for layer, state in zip(LAYERS, states, strict=True)}
    request = Scripted(text, start + 2, carried)
    drafter.open(info_for(1, V)).propose(request)
    return request.logits[:count]


def drafter_of(head):
    drafter = object.__new__(Eagle3Drafter)
    drafter.__dict__.update(head=head, hidden_layers=LAYERS, loaded=loaded_head(head, "head"))
    return drafter


def test_drafts_at_masks_in_training_are_those_of_decoding(targets):
    """From every position that counts, and at every depth, the logits are those of a draft in one pass."""
    target = targets()
    head = head_for(target, parallel=True)
    reading = read_target(target, pad_rows(TEXTS, PROMPTS), LAYERS, torch.device("cpu"))
    lengths = torch.full(reading.rows.tokens[:, 1:-1].shape, K - 1)
    layout, logits = masked(head, reading, lengths)
    found = head.over_vocabulary(logits.detach())
    tokens = reading.rows.tokens[:, 2:][layout.wanted][layout.predicted]
    starts = [(row, start, 0) for row, start in layout.wanted.nonzero().tolist()]
    starts += zip(layout.rows.tolist(), layout.anchors.tolist(), layout.depths.tolist(), strict=True)
    for number, (row, start, depth) in enumerate(starts):
        expected = drafts_of(drafter_of(head), reading, row, start, K)[depth]
        torch.testing.assert_close(found[number], expected, atol=1e-4, rtol=1e-4)
        assert tokens[number] == TEXTS[row][start + 2 + depth]
    # All but the first sampled token are drafted, at up to three depths: as when drafts are unrolled.
    assert len(starts) == 18


def test_the_loss_and_the_scores_of_drafts_at_masks(targets):
    target = targets()
    head = head_for(target, parallel=True)
    reading = read_target(target, pad_rows(TEXTS, PROMPTS), LAYERS, torch.device("cpu"))
    losses = []
    overlaps = {depth: [] for depth in range(K)}
    for row, text in enumerate(TEXTS):
        for start in range(max(PROMPTS[row] - 1, 0), len(text) - 2):
            q = torch.stack(drafts_of(drafter_of(head), reading, row, start, K))[: len(text) - 2 - start]
            p = reading.logits[row, start + 1 : start + 1 + len(q)]
            losses += [distillation(p[None, at, IDS], q[None, at, IDS], 0.6, 0.7)[0] for at in range(len(q))]
            if start % K == 0:
                for depth, each in enumerate(overlap(p, q, 0.7)):
                    overlaps[depth].append(float(each))
    lengths = torch.full(reading.rows.tokens[:, 1:-1].shape, K - 1)
    loss = masked_loss(head, reading, lengths, 0.6, 0.7)
    assert float(loss.detach()) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)
    loss.backward()
    assert all(weight.grad.abs().sum() > 0 for weight in head.parameters() if weight.requires_grad)
    alpha = head_scores(head, reading, K, 0.7).alpha
    assert alpha == pytest.approx([sum(each) / len(each) for each in overlaps.values()], abs=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_loss_is_that_of_every_position_by_its_weight(targets, share):
    target = targets()
    head, reading = head_for(target), read_target(target, pad_rows(TEXTS, PROMPTS), LAYERS, torch.device("cpu"))
    loss = unrolled_loss(head, reading, K, 0.5, share, 0.7)
    expected = weights = 0.0
    for position, step in enumerate(unrolled(head, reading, K)):
        p = step.p_logits[:, IDS]
        expected += 0.5**position * float(distillation(p, step.logits.detach(), share, 0.7)[0])
        weights += 0.5**position * len(p)
    assert float(loss.detach()) == pytest.approx(expected / weights, rel=1e-5)
    loss.backward()
    assert head.embed_tokens.weight.grad is None
    assert all(weight.grad.abs().sum() > 0 for weight in head.parameters() if weight.requires_grad)


def test_the_scores_count_tokens_that_the_head_cannot_draft(targets):
    target = targets()
    head, reading = head_for(target), read_target(target, pad_rows(TEXTS, PROMPTS), LAYERS, torch.device("cpu"))
    scores = head_scores(head, reading, K, 1.0)
    reached = {}
    for position, step in enumerate(unrolled(head, reading, K)):
        q = torch.full((len(step.logits), V), float("-inf")).index_copy(1, IDS, step.logits.detach())
        each = overlap(step.p_logits, q)
        assert scores.alpha[position] == pytest.approx(float(each.mean()), abs=1e-5)
        accepted = 0.0
        for number, start in enumerate(map(tuple, step.where.nonzero().tolist())):
            before = reached.get(start, 1.0)
            accepted += before * float(each[number])
            ratio = (q[number].softmax(-1) / step.p_logits[number].softmax(-1))[step.tokens[number]]
            reached[start] = before * min(1.0, float(ratio))
        assert scores.accepted_up_to[position] == pytest.approx(accepted / len(each), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"parallel": True}),
        ("gpt2", {"loss": "kl"}),
        ("t5", {}),
        ("t5", {"parallel": True, "retention": 0.5}),
    ],
)
def test_training_raises_alpha_and_the_target_stays(targets, config_for, family, settings):
    first, last = trained(Eagle3Trainer(config_for(family, **settings)), targets(family))
    assert last["alpha_1"] > first["alpha_1"] + 0.02
    assert last["block_efficiency"] > first["block_efficiency"] + 0.02


@pytest.mark.slow
def test_what_is_written_drafts_for_this_target_and_for_no_other(targets, config_for):
    config = config_for(draft_vocab=24, saved_as="bfloat16", save_embeddings=False)
    report = Eagle3Trainer(config).train(Recorder())
    assert report.usage == f'{{name: eagle3, model: "{config.output}"}}'
    tensors = load_file(config.output / "model.safetensors")
    assert tensors["lm_head.weight"].shape[0] == tensors["d2t"].shape[0] == int(tensors["t2d"].sum()) == 24
    assert "embed_tokens.weight" not in tensors
    assert tensors["fc.weight"].dtype == torch.bfloat16
    drafter = Eagle3Drafter(Eagle3Config(model=str(config.output)), targets().info())
    settings = GenerationSettings(max_new_tokens=20, ignore_eos=True)
    result = Decoder(targets(), drafter, gamma=Gamma(K), strict=True).generate([[2, 3]] * 4, settings)
    share = result.metrics.accepted / result.metrics.drafted
    assert share > 0.2
    with pytest.raises(ModelError, match=r"was trained for .*llama \(fingerprint .*specdec train eagle3 --target"):
        read_eagle3(str(config.output), targets("gpt2").info())


def test_a_head_for_one_pass_is_written_in_the_format_that_the_drafter_loads(targets, config_for):
    target, config = targets(), config_for(parallel=True, steps=2, samples=300, held_out=100)
    Eagle3Trainer(config).train(Recorder())
    keys = json.loads((config.output / "config.json").read_text())
    assert (keys["speculators_model_type"], keys["mask_token_id"]) == ("peagle", V - 1)
    drafter = Eagle3Drafter(Eagle3Config(model=str(config.output)), target.info())
    passes = []
    drafter.head.register_forward_hook(lambda *_: passes.append(1))
    decoder = Decoder(target, drafter, gamma=Gamma(K), strict=True)
    metrics = decoder.generate([2, 3], GenerationSettings(max_new_tokens=20, ignore_eos=True)).metrics
    assert metrics.drafted > 2 * len(passes) > 0


@pytest.mark.parametrize("parallel", [False, True])
def test_texts_too_short_for_a_draft_are_passed_over(config_for, tmp_path, parallel):
    (tmp_path / "ids.txt").write_text("3 4\n5 6\n7 8\n9 10 11 12\n5 6\n")
    config = config_for(
        ids=tmp_path / "ids.txt", samples=None, held_out=50, batch_tokens=1, steps=6, parallel=parallel
    )
    report = Eagle3Trainer(config).train(Recorder())
    assert report.facts["steps"] == 6


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"aux_layers": (0, 0)}, ConfigError, "aux_layers: .0, 0. are not different layers"),
        ({"aux_layers": (0, 3)}, ConfigError, "which has 2: 0 to 2"),
    ],
)
def test_layers_that_the_target_does_not_have(config_for, changes, error, said):
    with pytest.raises(error, match=said):
        Eagle3Trainer(config_for(**changes)).train(Recorder())


@pytest.mark.parametrize(
    "settings",
    [
        {"samples": None},
        {"retention": 0.5},
        {"parallel": True, "decay": 0.5},
        {"parallel": True, "unrolled": 1},
    ],
)
def test_bad_settings_are_refused(config_for, settings):
    with pytest.raises(ValidationError):
        config_for(**settings)
