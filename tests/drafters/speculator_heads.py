"""Heads of the speculators package: targets that they read, their logits, and a bench to draft on."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from specdec_core.models import wrap_model
from specdec_drafters.eagle3.drafter import Eagle3Drafter
from specdec_drafters.eagle3.model import CARRIED
from specdec_drafters.settings import Eagle3Config
from tests.catalogue import write_random_eagle3
from tests.drafters.support import SeededRequest, info_for, rows_of, tree_request
from tests.tiny import tiny_model

DATA = Path(__file__).parent / "data"
"""What the package computed, by drafter and case; `speculators_reference.py` writes it."""
CASES = {
    "eagle3": ("llama", "qwen3", "norm-before-fc"),
    "peagle": ("llama", "qwen3"),
    "mtp": ("qwen3", "qwen3-sliding"),
    "dflash": ("qwen3", "anchor", "sliding", "non-causal"),
}
V, D = 40, 16
PROMPTS = [[2, 3, 4, 5, 6, 7], [8, 7], [9, 10, 11]]


def target_for(family="llama", device="cpu", seed=0, **settings):
    """A target whose hidden states the heads in `DATA` read."""
    model = tiny_model(family, V, seed, **{"hidden_size": D, "num_hidden_layers": 4, **settings})
    return wrap_model(model.to(device))


def changed(folder, head, drop=(), config=None, layer=None, **tensors):
    """Write a copy of one of the heads in `DATA` in which something is different; return the folder's name."""
    shutil.copytree(DATA / head, folder)
    path = folder / "model.safetensors"
    given = load_file(path) | tensors
    save_file({name: tensor for name, tensor in given.items() if name not in drop}, path)
    keys = json.loads((folder / "config.json").read_text()) | (config or {})
    keys["transformer_layer_config"] |= layer or {}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in keys.items() if value != "gone"}))
    return str(folder)


def check_logits(head, given, reference, ids):
    """Compare a head with the logits of the speculators package, from every position and at every depth.

    `ids` are those of the draft vocabulary.
    """
    tokens, states = given["input_ids"], head.combine(given["hidden_states"])
    steps, count = reference.shape[:2]
    others = torch.ones(head.config.vocab_size, dtype=torch.bool).index_fill_(0, ids, value=False)
    with torch.inference_mode():
        for base in range(count):
            cache = DynamicCache(config=head.config)
            output = head(tokens[:, : base + 1], states[:, : base + 1], cache)
            for step in range(min(steps, count - base)):
                if step:
                    state = output.hidden_states[CARRIED][:, -1:]
                    output = head(tokens[:, base + step, None], state, cache)
                logits = output.logits[0, -1]
                torch.testing.assert_close(logits[ids], reference[step, base], atol=1e-4, rtol=1e-4)
                assert (logits[others] == float("-inf")).all()


class Bench:
    """A drafter and its target: requests with the target's states, and what the head says of a text by itself."""

    def __init__(self, folder, write=write_random_eagle3, kind=Eagle3Drafter, config=Eagle3Config, **settings):
        self.target = target_for()
        write(folder, self.target, **settings)
        self.drafter = kind(config(model=str(folder)), self.target.info())
        self.info = info_for(len(PROMPTS), V)

    def states(self, tokens):
        """The outputs of the layers at each token, `[T, D]`, without a cache."""
        with torch.inference_mode(), self.target.features.capture_layers(self.drafter.hidden_layers) as states:
            self.target.model(torch.tensor([list(tokens)]), use_cache=False)
        return {layer: state[0] for layer, state in states.items()}

    def carried(self, rows):
        """The states of a request, NaN where a drafter must not read."""
        read = [self.states(row[:-1]) for row in rows]
        return {
            layer: pad_sequence([states[layer] for states in read], batch_first=True, padding_value=torch.nan)
            for layer in self.drafter.hidden_layers
        }

    def request(self, rows, budget, seed=0, shape=None):
        states = self.carried(rows)
        if shape is None:
            return SeededRequest(rows, budget, seed, hidden_states=states)
        return tree_request(rows, budget, shape, V, hidden_states=states)

    def q(self, tokens, draft):
        """q after the committed tokens and a draft, at temperature 1 and without a cache: `[V]`."""
        head, states = self.drafter.head, self.states(tokens[:-1])
        text = [*tokens[1:], *draft]
        with torch.inference_mode():
            read = head.combine(torch.cat([states[layer] for layer in self.drafter.hidden_layers], -1))[None]
            for end in range(len(tokens) - 1, len(text) + 1):
                output = head(torch.tensor([text[:end]]), read)
                read = torch.cat([read, output.hidden_states[CARRIED][:, -1:]], 1)
        return output.logits[0, -1].softmax(-1)

    def check(self, session, tokens):
        """Compare what a session drafts with what the head says by itself."""
        proposal = session.propose(self.request(tokens, [3] * len(tokens), seed=5))
        for row, draft in enumerate(rows_of(proposal)):
            for position in range(len(draft)):
                expected = self.q(tokens[row], draft[:position])
                torch.testing.assert_close(proposal.q.probabilities[row, position], expected, atol=1e-5, rtol=1e-3)
