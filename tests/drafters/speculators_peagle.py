"""Results of the speculators package with a P-EAGLE head. It runs in an environment that has the package.

    python speculators_peagle.py make FOLDER        write the checkpoints of tests/drafters/data/peagle
    python speculators_peagle.py run HEAD OUTPUT    write the logits of a head, given its `inputs.safetensors`

`inputs.safetensors` holds `hidden_states` `[1, T, states * D]`, the target's at x_0 ... x_(T - 1), and `input_ids`
`[1, T]`, the tokens x_1 ... x_T. The output holds `logits` `[S, T, draft vocabulary]`, of the drafts of S tokens
that begin after each of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the package compiles its training pass

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorsConfig, VerifierConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators_reference import DRAFT_V, SIZES, STEPS, D, T, V
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

CASES = {
    # The defaults: layers of Llama, a draft vocabulary.
    "llama": (LlamaConfig(**SIZES, num_hidden_layers=2, num_key_value_heads=1), DRAFT_V, {}),
    # Everything else: another architecture, the whole vocabulary, every flag that does not exclude another.
    "qwen3": (
        Qwen3Config(**SIZES, num_hidden_layers=1, num_key_value_heads=2),
        V,
        {"norm_before_residual": True, "fc_norm": True},
    ),
}


def make(folder: Path, name: str) -> None:
    """Write a random checkpoint as the package does, and inputs for it."""
    layer, draft_vocab, flags = CASES[name]
    torch.manual_seed(len(name))
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=draft_vocab,
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        mask_token_id=V - 1,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model = PEagleDraftModel(config)
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
    save_file(
        {"hidden_states": torch.randn(1, T, 3 * D), "input_ids": torch.randint(0, V, (1, T))},
        folder / "inputs.safetensors",
    )


def every_chain(**_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The anchor and depth of each entry, with a chain of masks behind each token that has as many after it."""
    parts = [(torch.arange(T - depth), depth) for depth in range(STEPS)]
    anchors = torch.cat([anchor for anchor, _ in parts])
    return anchors, torch.cat([torch.full_like(anchor, depth) for anchor, depth in parts])


@torch.no_grad()
def run(folder: Path, output: Path) -> None:
    """Write the logits that the package computes in training, where it draws the chains at random."""
    given = load_file(folder / "inputs.safetensors")
    config = PEagleSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    verifier = config.speculators_config.verifier
    if verifier.name_or_path is None:  # the package needs one, of which it takes what a checkpoint lacks
        verifier.name_or_path = str(output.parent / "verifier")
        LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=4)).save_pretrained(verifier.name_or_path)
    model = SpeculatorModel.from_pretrained(folder, config=config).eval()
    core.generate_cod_sample_indices = every_chain
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, made: logits.append(made[0].float().clone()))
    model(
        hidden_states=given["hidden_states"].to(model.dtype),
        input_ids=given["input_ids"],
        document_ids=torch.zeros_like(given["input_ids"]),
        verifier_last_hidden_states=torch.zeros(1, T, D, dtype=model.dtype),
        loss_config=core.resolve_loss_config("kl_div", "eager"),
    )
    table = torch.full((STEPS, T, logits[0].shape[-1]), torch.nan)
    anchors, depths = every_chain()
    table[depths, anchors] = logits[0]
    save_file({"logits": table}, output)


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
            (folder / output.name).write_bytes(output.read_bytes())


if __name__ == "__main__":
    main()
