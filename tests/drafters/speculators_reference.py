"""Results of the speculators package with a draft head. It runs in an environment that has the package.

    python speculators_reference.py make FOLDER        write the checkpoints of tests/drafters/data/eagle3
    python speculators_reference.py run HEAD OUTPUT    write the logits of a head, given its `inputs.safetensors`

`inputs.safetensors` holds `hidden_states` `[1, T, states * D]`, the target's at x_0 ... x_(T - 1), and `input_ids`
`[1, T]`, the tokens x_1 ... x_T. Row t of step 0 is read with the target's states; step s reads the tokens that
follow, each with the head's own state, as a draft does. The output holds `logits` `[S, T, draft vocabulary]`, of
which the last s rows of step s have no meaning.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

V, DRAFT_V, D, T, STEPS = 40, 24, 16, 9, 3
"""Sizes of the checkpoints, and of what they read."""
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}
CASES = {
    # The defaults of most published heads: one layer of Llama, a draft vocabulary.
    "llama": (LlamaConfig(**SIZES, num_hidden_layers=1, num_key_value_heads=1), DRAFT_V, {}),
    # Everything else: another architecture, two layers, every flag that does not exclude another.
    "qwen3": (
        Qwen3Config(**SIZES, num_hidden_layers=2, num_key_value_heads=2),
        V,
        {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
    ),
    "norm-before-fc": (
        LlamaConfig(**SIZES, num_hidden_layers=1, num_key_value_heads=2),
        DRAFT_V,
        {"norm_before_fc": True, "norm_before_residual": True},
    ),
}


def make(folder: Path, name: str) -> None:
    """Write a random checkpoint as the package does, and inputs for it."""
    layer, draft_vocab, flags = CASES[name]
    torch.manual_seed(len(name))
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft_vocab,
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model = Eagle3DraftModel(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(1 + 0.3 * torch.randn(weight.shape) if "norm" in key else 0.5 * torch.randn(weight.shape))
    if draft_vocab < V:
        ids = torch.randperm(V)[:draft_vocab].sort().values
        t2d = torch.zeros(V, dtype=torch.bool)
        t2d[ids] = True
        model.load_vocab_mappings(t2d, ids - torch.arange(draft_vocab))
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)  # the package's own code, which transformers copies
    inputs = {"hidden_states": torch.randn(1, T, 3 * D), "input_ids": torch.randint(0, V, (1, T))}
    save_file(inputs, folder / "inputs.safetensors")


@torch.no_grad()
def run(folder: Path, output: Path) -> None:
    """Write the logits that the package computes."""
    given = load_file(folder / "inputs.safetensors")
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    verifier = config.speculators_config.verifier
    if verifier.name_or_path is None:  # the package needs one, of which it takes what a checkpoint lacks
        verifier.name_or_path = str(output.parent / "verifier")
        LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=4)).save_pretrained(verifier.name_or_path)
    model = SpeculatorModel.from_pretrained(folder, config=config).eval()
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, made: logits.append(made[0].float().clone()))
    model(
        hidden_states=given["hidden_states"].to(model.dtype),
        input_ids=given["input_ids"],
        document_ids=torch.zeros_like(given["input_ids"]),
        ttt_steps=STEPS,
    )
    save_file({"logits": torch.stack(logits)}, output)


def main() -> None:
    """Do what the command line asks for."""
    command, *paths = sys.argv[1:]
    if command == "run":
        run(*map(Path, paths))
        return
    for name in CASES:
        folder = Path(paths[0]) / name
        make(folder, name)
        with TemporaryDirectory() as temporary:
            output = Path(temporary) / "reference.safetensors"
            run(folder, output)
            shutil.copyfile(output, folder / output.name)


if __name__ == "__main__":
    main()
