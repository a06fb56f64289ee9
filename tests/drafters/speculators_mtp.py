"""Results of the speculators package with an MTP layer. It runs in an environment that has the package.

    python speculators_mtp.py make FOLDER        write the checkpoints of tests/drafters/data/mtp
    python speculators_mtp.py run HEAD OUTPUT    write the logits of a layer, given its `inputs.safetensors`

`inputs.safetensors` holds `hidden_states` `[1, T, D]`, the target's at x_0 ... x_(T - 1), x_1 ... x_T as
`input_ids` `[1, T]`, and the target's `embed_tokens` and `lm_head`, each `[V, D]`. The output holds `logits`
`[S, T, V]` of drafts as in `speculators_reference.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators_reference import SIZES, STEPS, D, T, V
from transformers import Qwen3Config

EMBEDDINGS = ("embed_tokens", "lm_head")
CASES = {
    "qwen3": Qwen3Config(**SIZES, num_hidden_layers=4, num_key_value_heads=1),
    # The config is that of the target, whose layers have windows. The MTP layer has none.
    "qwen3-sliding": Qwen3Config(
        **SIZES,
        num_hidden_layers=4,
        num_key_value_heads=2,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=0,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    ),
}


@torch.no_grad()
def make(folder: Path, name: str) -> None:
    """Write a random checkpoint as the package does, and inputs for it."""
    torch.manual_seed(len(name))
    config = MTPSpeculatorConfig(
        transformer_layer_config=CASES[name],
        speculators_config=SpeculatorsConfig(
            algorithm="mtp",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    )
    model = MTPDraftModel(config)
    model.load_verifier_weights()  # drops what training alone needs
    for key, weight in model.named_parameters():
        weight.copy_(1 + 0.3 * torch.randn(weight.shape) if "norm" in key else 0.5 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)  # the package's own code, which transformers copies
    inputs = {"hidden_states": torch.randn(1, T, D), "input_ids": torch.randint(0, V, (1, T))}
    embeddings = {which: 0.5 * torch.randn(V, D) for which in EMBEDDINGS}
    save_file(inputs | embeddings, folder / "inputs.safetensors")


@torch.no_grad()
def run(folder: Path, output: Path) -> None:
    """Write the logits that the package computes for drafts from every position.

    The package's loop over the positions of a draft is for training, where a token sees only the entries of its
    position. Here each token is a forward pass of the package over what a draft reads: the target's states, and
    after them the layer's own outputs.
    """
    given = load_file(folder / "inputs.safetensors")
    config = MTPSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    config.speculators_config.proposal_methods[0].speculative_tokens = 1
    model = MTPDraftModel.from_pretrained(folder, config=config).eval()
    for which in EMBEDDINGS:
        getattr(model, which).load_state_dict({"weight": given[which]})
    outputs: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, inputs, _made: outputs.append(inputs[0]))
    logits = torch.zeros(STEPS, T, V)
    for base in range(T):
        states = given["hidden_states"][:, : base + 1]
        for step in range(min(STEPS, T - base)):
            tokens = given["input_ids"][:, : base + 1 + step]
            # The package reads x_0 ... x_(n + 1) with states of x_0 ... x_(n - 1); the first and last are unused.
            made, _, _ = model(input_ids=torch.nn.functional.pad(tokens, (1, 1)), hidden_states=states)
            logits[step, base] = made[0][0, -1]
            states = torch.cat([states, outputs[-1][:, -1:]], dim=1)
    save_file({"logits": logits}, output)


def main() -> None:
    """Do what the command line asks for."""
    command, *paths = sys.argv[1:]
    if command == "run":
        run(*map(Path, paths))
        return
    for name in CASES:
        folder = Path(paths[0]) / name
        make(folder, name)
        run(folder, folder / "reference.safetensors")


if __name__ == "__main__":
    main()
