"""Results of the speculators package with a DFlash head. It runs in an environment that has the package.

    python speculators_dflash.py make FOLDER        write the checkpoints of tests/drafters/data/dflash
    python speculators_dflash.py run HEAD OUTPUT    write the logits of a head, given its `inputs.safetensors`

`inputs.safetensors` holds `hidden_states` `[1, T, states * D]`, the target's at x_0 ... x_(T - 1), the tokens
`input_ids` `[1, T]`, and the target's `embed_tokens` and `lm_head`, each `[V, D]`, which a checkpoint may lack.
The output holds `logits` `[A, block size, draft vocabulary]`, of the blocks that begin with x_0 ... x_(A - 1).
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators_reference import DRAFT_V, SIZES, D, V
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

LAYERS = [0, 2, 3]
ANCHORS = 8
WINDOW = {"use_sliding_window": True, "sliding_window": 3}
SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    # The defaults: layers of Qwen3 with full attention, a draft vocabulary.
    "qwen3": (
        Qwen3Config(**SIZES, num_hidden_layers=2, num_key_value_heads=1),
        {"draft_vocab_size": DRAFT_V, "block_size": 4},
    ),
    # Another config, the whole vocabulary, of which a checkpoint holds nothing, and a draft token a position.
    "anchor": (
        LlamaConfig(**SIZES, num_hidden_layers=1, num_key_value_heads=2),
        {"draft_vocab_size": V, "block_size": 3, "sample_from_anchor": True},
    ),
    "sliding": (
        Qwen3Config(
            **SIZES,
            num_hidden_layers=2,
            num_key_value_heads=2,
            layer_types=[SLIDING, FULL],
            max_window_layers=0,
            **WINDOW,
        ),
        {"draft_vocab_size": DRAFT_V, "block_size": 4},
    ),
    "non-causal": (
        Qwen3Config(
            **SIZES,
            num_hidden_layers=1,
            num_key_value_heads=1,
            layer_types=[SLIDING],
            max_window_layers=0,
            **WINDOW,
        ),
        {"draft_vocab_size": DRAFT_V, "block_size": 4, "sliding_window_non_causal": True},
    ),
}


def make(folder: Path, name: str) -> None:
    """Write a random checkpoint as the package does, and inputs for it."""
    layer, keys = CASES[name]
    torch.manual_seed(len(name))
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layer,
        aux_hidden_state_layer_ids=LAYERS,
        mask_token_id=V - 1,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=keys["block_size"] - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **keys,
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = DFlashDraftModel(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(1 + 0.3 * torch.randn(weight.shape) if "norm" in key else 0.5 * torch.randn(weight.shape))
    if keys["draft_vocab_size"] < V:
        ids = torch.randperm(V)[:DRAFT_V].sort().values
        t2d = torch.zeros(V, dtype=torch.bool)
        t2d[ids] = True
        model.load_vocab_mappings(t2d, ids - torch.arange(DRAFT_V))
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)  # the package's own code, which transformers copies
    size = ANCHORS + keys["block_size"]
    inputs = {
        "hidden_states": torch.randn(1, size, len(LAYERS) * D),
        "input_ids": torch.randint(0, V, (1, size)),
        "embed_tokens": 0.5 * torch.randn(V, D),
        "lm_head": 0.5 * torch.randn(V, D),
    }
    save_file(inputs, folder / "inputs.safetensors")


def verifier(folder: Path, given: dict[str, torch.Tensor]) -> str:
    """Write the target that the package asks for, of which it takes the embeddings."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=4, tie_word_embeddings=False))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(given["embed_tokens"])
        model.lm_head.weight.copy_(given["lm_head"])
    model.save_pretrained(folder / "verifier")
    return str(folder / "verifier")


@torch.no_grad()
def run(folder: Path, output: Path) -> None:
    """Write the logits that the package computes."""
    given = load_file(folder / "inputs.safetensors")
    config = DFlashSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    config.speculators_config.verifier.name_or_path = verifier(output.parent, given)
    model = SpeculatorModel.from_pretrained(folder, config=config).eval()
    tokens = given["input_ids"]
    _, logits, *_ = model._backbone_forward(
        given["hidden_states"].to(model.dtype),
        tokens,
        torch.ones_like(tokens),  # all but the last block may be anchors, and as many as there are are chosen
        torch.zeros(*tokens.shape, D),
        torch.zeros_like(tokens),
        max_anchors=ANCHORS,
    )
    save_file({"logits": logits[0].unflatten(0, (ANCHORS, -1)).float().contiguous()}, output)


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
