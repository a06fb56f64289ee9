"""Results of the speculators package with its draft heads. It runs in an environment that has the package.

    python speculators_reference.py make FOLDER        write the checkpoints of tests/drafters/data
    python speculators_reference.py run HEAD OUTPUT    write the logits of a head, given its `inputs.safetensors`

`inputs.safetensors` holds `hidden_states` `[1, T, states * D]`, the target's at x_0 ... x_(T - 1), and `input_ids`
`[1, T]`, the tokens x_1 ... x_T; for DFlash x_0 ... x_(T - 1). For DFlash and MTP it holds the target's
`embed_tokens` and `lm_head`, each `[V, D]`, too: their checkpoints may lack them.

The output holds `logits`:

- EAGLE-3 and MTP, `[S, T, draft vocabulary]`: row t of step 0 is read with the target's states; step s reads the
  tokens that follow, each with the head's own state, as a draft does. The last s rows of step s have no meaning.
- P-EAGLE, `[S, T, draft vocabulary]`: of the drafts of S tokens that begin after each of the tokens.
- DFlash, `[A, block size, draft vocabulary]`: of the blocks that begin with x_0 ... x_(A - 1).
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the package compiles a pass of its training

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

V, DRAFT_V, D, T, STEPS, ANCHORS = 40, 24, 16, 9, 3, 8
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
WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
SLIDING, FULL = "sliding_attention", "full_attention"
EMBEDDINGS = ("embed_tokens", "lm_head")
EAGLE = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
DFLASH = {"aux_hidden_state_layer_ids": [0, 2, 3], "mask_token_id": V - 1}
KINDS = {
    "eagle3": (Eagle3SpeculatorConfig, Eagle3DraftModel, EAGLE),
    "peagle": (PEagleSpeculatorConfig, PEagleDraftModel, {**EAGLE, "mask_token_id": V - 1}),
    "mtp": (MTPSpeculatorConfig, MTPDraftModel, {}),
    "dflash": (DFlashSpeculatorConfig, DFlashDraftModel, DFLASH),
}


def llama(layers: int, heads: int) -> LlamaConfig:
    """Return the layers of a head, with so many heads of keys."""
    return LlamaConfig(**SIZES, num_hidden_layers=layers, num_key_value_heads=heads)


def qwen3(layers: int, heads: int, **more: object) -> Qwen3Config:
    """Return the layers of a head, with so many heads of keys."""
    return Qwen3Config(**SIZES, num_hidden_layers=layers, num_key_value_heads=heads, **more)


CASES = {
    # The defaults of most published heads: one layer of Llama, a draft vocabulary.
    "eagle3/llama": (llama(1, 1), {"draft_vocab_size": DRAFT_V}),
    # Everything else: another architecture, two layers, every flag that does not exclude another.
    "eagle3/qwen3": (
        qwen3(2, 2),
        {"draft_vocab_size": V, "norm_before_residual": True, "fc_norm": True, "norm_output": True},
    ),
    "eagle3/norm-before-fc": (
        llama(1, 2),
        {"draft_vocab_size": DRAFT_V, "norm_before_fc": True, "norm_before_residual": True},
    ),
    "peagle/llama": (llama(2, 1), {"draft_vocab_size": DRAFT_V}),
    "peagle/qwen3": (qwen3(1, 2), {"draft_vocab_size": V, "norm_before_residual": True, "fc_norm": True}),
    "mtp/qwen3": (qwen3(4, 1), {}),
    # The config is that of the target, whose layers have windows. The MTP layer has none.
    "mtp/qwen3-sliding": (
        qwen3(
            4,
            2,
            attention_bias=True,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
            **WINDOW,
        ),
        {},
    ),
    # The defaults: layers of Qwen3 with full attention, a draft vocabulary.
    "dflash/qwen3": (qwen3(2, 1), {"draft_vocab_size": DRAFT_V, "block_size": 4}),
    # Another config, the whole vocabulary, of which a checkpoint holds nothing, and a draft token a position.
    "dflash/anchor": (llama(1, 2), {"draft_vocab_size": V, "block_size": 3, "sample_from_anchor": True}),
    "dflash/sliding": (
        qwen3(2, 2, layer_types=[SLIDING, FULL], **WINDOW),
        {"draft_vocab_size": DRAFT_V, "block_size": 4},
    ),
    "dflash/non-causal": (
        qwen3(1, 1, layer_types=[SLIDING], **WINDOW),
        {"draft_vocab_size": DRAFT_V, "block_size": 4, "sliding_window_non_causal": True},
    ),
}


@torch.no_grad()
def make(folder: Path, name: str) -> None:
    """Write a random checkpoint as the package does, and inputs for it."""
    kind, case = name.split("/")
    layer, keys = CASES[name]
    config_class, model_class, fixed = KINDS[kind]
    torch.manual_seed(len(case))
    drafted = keys["block_size"] - 1 if kind == "dflash" else STEPS
    config = config_class(
        transformer_layer_config=layer,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=drafted)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(
                name_or_path=None, architectures=["Qwen3ForCausalLM" if kind == "mtp" else "LlamaForCausalLM"]
            ),
        ),
        **fixed,
        **keys,
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = model_class(config)
    if kind == "mtp":
        model.load_verifier_weights()  # drops what training alone needs
    for key, weight in model.named_parameters():
        weight.copy_(1 + 0.3 * torch.randn(weight.shape) if "norm" in key else 0.5 * torch.randn(weight.shape))
    if keys.get("draft_vocab_size", V) < V:
        ids = torch.randperm(V)[:DRAFT_V].sort().values
        t2d = torch.zeros(V, dtype=torch.bool)
        t2d[ids] = True
        model.load_vocab_mappings(t2d, ids - torch.arange(DRAFT_V))
    model.save_pretrained(folder)
    (folder / "config.py").unlink(missing_ok=True)  # the package's own code, which transformers copies
    length, states = (ANCHORS + keys["block_size"] if kind == "dflash" else T), (1 if kind == "mtp" else 3)
    inputs = {"hidden_states": torch.randn(1, length, states * D), "input_ids": torch.randint(0, V, (1, length))}
    if kind in ("dflash", "mtp"):
        inputs |= {which: 0.5 * torch.randn(V, D) for which in EMBEDDINGS}
    save_file(inputs, folder / "inputs.safetensors")


def write_verifier(folder: Path, given: dict[str, torch.Tensor]) -> str:
    """Write the target that the package asks for, of which it takes what a checkpoint lacks."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=4, tie_word_embeddings=False))
    if "embed_tokens" in given:
        model.model.embed_tokens.weight.copy_(given["embed_tokens"])
        model.lm_head.weight.copy_(given["lm_head"])
    model.save_pretrained(folder)
    return str(folder)


def forward_logits(model: torch.nn.Module, given: dict[str, torch.Tensor], **more: object) -> list[torch.Tensor]:
    """Return the logits of each step of a forward pass of training."""
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, made: logits.append(made[0].float().clone()))
    model(
        hidden_states=given["hidden_states"].to(model.dtype),
        input_ids=given["input_ids"],
        document_ids=torch.zeros_like(given["input_ids"]),
        **more,
    )
    return logits


def every_chain(**_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The anchor and depth of each entry, with a chain of masks behind each token that has as many after it."""
    parts = [(torch.arange(T - depth), depth) for depth in range(STEPS)]
    anchors = torch.cat([anchor for anchor, _ in parts])
    return anchors, torch.cat([torch.full_like(anchor, depth) for anchor, depth in parts])


def peagle_logits(model: PEagleDraftModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits that the package computes in training, where it draws the chains at random."""
    core.generate_cod_sample_indices = every_chain
    logits = forward_logits(
        model,
        given,
        verifier_last_hidden_states=torch.zeros(1, T, D, dtype=model.dtype),
        loss_config=core.resolve_loss_config("kl_div", "eager"),
    )
    table = torch.full((STEPS, T, logits[0].shape[-1]), torch.nan)
    anchors, depths = every_chain()
    table[depths, anchors] = logits[0]
    return table


def mtp_logits(model: MTPDraftModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits that the package computes for drafts from every position.

    The package's loop over the positions of a draft is for training, where a token sees only the entries of its
    position. Here each token is a forward pass of the package over what a draft reads: the target's states, and
    after them the layer's own outputs.
    """
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
    return logits


def dflash_logits(model: DFlashDraftModel, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits that the package computes of blocks."""
    tokens = given["input_ids"]
    _, logits, *_ = model._backbone_forward(
        given["hidden_states"].to(model.dtype),
        tokens,
        torch.ones_like(tokens),  # all but the last block may be anchors, and as many as there are are chosen
        torch.zeros(*tokens.shape, D),
        torch.zeros_like(tokens),
        max_anchors=ANCHORS,
    )
    return logits[0].unflatten(0, (ANCHORS, -1)).float().contiguous()


@torch.no_grad()
def run(folder: Path, output: Path) -> None:
    """Write the logits that the package computes."""
    given = load_file(folder / "inputs.safetensors")
    kind = json.loads((folder / "config.json").read_text())["speculators_model_type"]
    config_class, model_class, _ = KINDS[kind]
    config = config_class.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    if kind == "mtp":
        config.speculators_config.proposal_methods[0].speculative_tokens = 1
        model = model_class.from_pretrained(folder, config=config).eval()
    else:
        verifier = config.speculators_config.verifier
        verifier.name_or_path = verifier.name_or_path or write_verifier(output.parent / "verifier", given)
        model = SpeculatorModel.from_pretrained(folder, config=config).eval()
    if kind == "eagle3":
        logits = torch.stack(forward_logits(model, given, ttt_steps=STEPS))
    else:
        logits = {"peagle": peagle_logits, "mtp": mtp_logits, "dflash": dflash_logits}[kind](model, given)
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
        with TemporaryDirectory() as temporary:
            output = Path(temporary) / "reference.safetensors"
            run(folder, output)
            (folder / output.name).write_bytes(output.read_bytes())


if __name__ == "__main__":
    main()
