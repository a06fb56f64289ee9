"""The heads drafter: what each head reads, which token it guesses, and whose heads it takes."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface import LAST_HIDDEN, ModelError, TargetInfo, TokenTree
from specdec_core.interface.settings import GenerationSettings
from specdec_core.models import inflate, load_model, wrap_model
from specdec_core.study.config.prompts import read_prompts
from specdec_core.study.config.schema import PromptsConfig
from specdec_drafters.heads.drafter import (
    HEADS_FILE,
    Heads,
    HeadsCard,
    HeadsDrafter,
    HeadsShape,
    read_heads,
    write_heads,
)
from specdec_drafters.settings import HeadsConfig
from tests.drafters.support import SeededRequest, info_for, tree_request
from tests.tiny import tiny_model
from tests.toys import Gamma

V, D, E, H, K = 11, 8, 6, 5, 3
SHAPE = HeadsShape(heads=K, hidden_size=D, width=H, token_size=E)
BLIND = replace(SHAPE, token_size=0)


@dataclass(frozen=True)
class Features:
    input_embeddings: Tensor
    output_embeddings: Tensor
    name: str = "4a"

    @property
    def hidden_size(self) -> int:
        return self.output_embeddings.shape[1]

    def fingerprint(self) -> str:
        return self.name


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FEATURES = Features(normal(V, E, seed=1), normal(V, D, seed=2))


def random_heads(shape=SHAPE, seed=3):
    """Heads whose last layers are not zero any more."""
    heads = Heads(shape, seed)
    with torch.no_grad():
        for number, weight in enumerate(heads.parameters()):
            weight.copy_(normal(*weight.shape, seed=100 * seed + number) * 0.7)
    return heads.eval().requires_grad_(requires_grad=False)


def card_for(shape=SHAPE, **changes):
    return HeadsCard(**{**vars(shape), "vocab_size": V, "target": "toy", "fingerprint": "4a", **changes})


def write(path, shape=SHAPE, seed=3, dtype=torch.float32, **changes):
    write_heads(path, random_heads(shape, seed), card_for(shape, **changes), dtype)
    return path


def target_info(features=FEATURES, **changes):
    return TargetInfo(**{"vocab_size": V, "features": features, **changes})


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "heads.safetensors")


def drafter_for(path, target=None, **settings):
    return HeadsDrafter(HeadsConfig(model=str(path), **settings), target or target_info())


def by_hand(heads, hidden, token, head, features=FEATURES):
    """One head on one hidden state `[D]`, spelled out: its logits `[V]`."""

    def size(vector):
        return (vector.pow(2).sum() / len(vector)).sqrt()

    shape = heads.shape
    state = hidden / size(hidden)
    read = state
    if shape.reads_token:
        embedded = features.input_embeddings[token]
        read = torch.cat([state, embedded / size(embedded)])
    own = slice(head * shape.width, (head + 1) * shape.width)
    inner = heads.inner["weight"][own] @ read + heads.inner["bias"][own]
    inner = inner * inner.sigmoid()
    change = inner @ heads.outer["weight"][head] + heads.outer["bias"][head]
    return features.output_embeddings @ (size(hidden) * (state + change))


def request(tokens, budget, hidden, seed=0):
    return SeededRequest(tokens, budget, seed, {LAST_HIDDEN: hidden})


HIDDEN = normal(3, D, seed=7) * torch.tensor([[1e-2], [1.0], [30.0]])
TOKENS = [[1, 2, 3], [4], [0, 0, 10]]


@pytest.mark.parametrize("shape", [SHAPE, BLIND], ids=["reads-token", "stern"])
def test_q_is_each_heads_own_distribution(tmp_path, shape):
    heads = random_heads(shape)
    drafter = drafter_for(write(tmp_path / "h.safetensors", shape))
    proposal = drafter.open(info_for(3, V)).propose(request(TOKENS, [K] * 3, HIDDEN))
    assert proposal.lengths == (K,) * 3
    for row, tokens in enumerate(TOKENS):
        for head in range(K):
            expected = by_hand(heads, HIDDEN[row], tokens[-1], head).softmax(-1)
            torch.testing.assert_close(proposal.q.probabilities[row, head], expected, atol=1e-6, rtol=1e-4)


def test_new_heads_say_what_the_target_says():
    states = Heads(SHAPE)(HIDDEN, normal(3, E, seed=8))
    assert states.shape == (3, K, D)
    torch.testing.assert_close(states, HIDDEN[:, None].expand(3, K, D), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("count", "budget", "lengths"), [(None, 9, 3), (2, 9, 2), (1, 1, 1), (3, 2, 2)])
def test_as_many_as_there_are_heads_or_room(file, count, budget, lengths):
    drafter = drafter_for(file, count=count)
    proposal = drafter.open(info_for(1, V)).propose(request([[5]], [budget], HIDDEN[:1]))
    assert proposal.tokens.shape == (1, lengths)


def test_each_level_of_a_tree_is_drawn_from_one_head_and_there_are_as_many_levels_as_heads(file):
    shape = TokenTree((-1, -1, 0, 1, 3, 4))  # one level more than there are heads
    drafter = drafter_for(file)
    asked = tree_request(TOKENS, [6, 0, 3], shape, V, hidden_states={LAST_HIDDEN: HIDDEN})
    proposal = drafter.open(info_for(3, V)).propose(asked)
    assert proposal.lengths == (5, 0, 3)
    for row, head, node in ((0, 0, 0), (0, 1, 2), (0, 1, 3), (0, 2, 4), (2, 0, 0), (2, 1, 2)):
        expected = by_hand(random_heads(), HIDDEN[row], TOKENS[row][-1], head).softmax(-1)
        torch.testing.assert_close(proposal.q.probabilities[row, node], expected, atol=1e-6, rtol=1e-4)


def test_a_round_trip_keeps_weights_and_card(tmp_path):
    path = tmp_path / "h.safetensors"
    write(path, dtype=torch.float16, facts={"steps": 7, "loss": "kl", "alpha": 0.5})
    heads, card = read_heads(path)
    assert card == card_for(facts={"steps": 7, "loss": "kl", "alpha": 0.5})
    for name, weight in random_heads().state_dict().items():
        torch.testing.assert_close(heads.state_dict()[name], weight.half().float())
    assert not any(weight.requires_grad for weight in heads.parameters())


def test_a_folder_and_a_path_from_the_studys_folder(tmp_path, file):
    assert drafter_for(tmp_path).count == K
    assert drafter_for(file.name, target_info(folder=tmp_path)).count == K


def test_embeddings_padded_beyond_the_logits(tmp_path):
    padded = replace(
        FEATURES,
        input_embeddings=torch.cat([FEATURES.input_embeddings, torch.full((5, E), torch.nan)]),
        output_embeddings=torch.cat([FEATURES.output_embeddings, torch.full((5, D), 1e3)]),
    )
    drafter = drafter_for(write(tmp_path / "h.safetensors"), target_info(padded))
    assert drafter.logits(HIDDEN, torch.tensor([1, 2, 3]), K).shape == (3, K, V)


def test_heads_of_another_target_are_refused(tmp_path, file):
    other = target_info(replace(FEATURES, name="77"))
    with pytest.raises(ModelError) as raised:
        drafter_for(file, other)
    message = str(raised.value)
    assert "was trained for another target, toy (fingerprint 4a); this one's is 77" in message
    assert "specdec train heads --target" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": replace(SHAPE, hidden_size=D + 1)}, "hidden states of size 9; this one's is 8"),
        ({"vocab_size": V + 1}, "vocabulary of size 12; this one's is 11"),
        ({"shape": replace(SHAPE, token_size=E + 1)}, "input embeddings of size 7; this one's is 6"),
    ],
)
def test_sizes_that_differ_are_refused(tmp_path, changes, said):
    with pytest.raises(ModelError, match=said):
        drafter_for(write(tmp_path / "h.safetensors", **changes))


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "h.safetensors"
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ModelError, match=r"no file of this format.*specdec_heads"):
        drafter_for(path)


def test_heads_fit_the_same_target_in_another_dtype_and_inflated(tmp_path):
    model = tiny_model("llama", V)
    target = wrap_model(model)
    shape = HeadsShape(K, 32, H, 32)
    path = write(tmp_path / "h.safetensors", shape, fingerprint=target.info().features.fingerprint())
    tokens = torch.tensor([3])
    hidden = normal(1, 32, seed=4)
    expected = drafter_for(path, target.info()).logits(hidden, tokens, K)
    large = drafter_for(path, inflate(target, 2).info())
    torch.testing.assert_close(large.logits(hidden, tokens, K), expected)
    half = drafter_for(path, wrap_model(model.bfloat16()).info())
    logits = half.logits(hidden.bfloat16(), tokens, K)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), expected, atol=0.1 * float(expected.abs().max()), rtol=0)


@pytest.mark.slow
def test_the_heads_that_ship_guess_for_the_target_that_ships():
    target = load_model("builtin:target", device="cpu")
    drafter = drafter_for("builtin:heads", target.info())
    path = HEADS_FILE.find("builtin:heads", Path())
    assert path.stat().st_size < 5_000_000
    assert (path.parent / "README.md").is_file()
    prompts = [one.text for one in read_prompts(PromptsConfig(builtin="heldout", limit=8), Path())]
    decoder = Decoder(target, drafter, gamma=Gamma(1), strict=True)
    metrics = decoder.generate(prompts, GenerationSettings(max_new_tokens=32, ignore_eos=True)).metrics
    assert metrics.accepted / metrics.drafted > 0.35
