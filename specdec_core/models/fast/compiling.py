"""Compiling the forward passes of a model: whether that works, and the proof that it gives the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only
from specdec_core.models.fast.cuda_graphs import GraphPasses
from specdec_core.models.fast.static import StaticError, StaticPasses
from specdec_core.models.load.probe import example_sources, relative_error, tolerance
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.model_session import ModelSession

_SCRIPT: Sequence[tuple[int, tuple[int, int], tuple[int, int]]] = (
    # columns of the draft, drafted tokens of each row, tokens of it that are kept
    (3, (3, 2), (1, 2)),
    (0, (0, 0), (0, 0)),
    (3, (1, 3), (0, 3)),
    (0, (0, 0), (0, 0)),
    (3, (3, 1), (2, 0)),
    (0, (0, 0), (0, 0)),
    (3, (2, 3), (0, 1)),
    (0, (0, 0), (0, 0)),
)
"""Passes of the proof: of each width, more than are checked anyway."""


def compile_model(loaded: LoadedModel) -> LoadedModel:
    """Return a copy of a model whose short forward passes are compiled, or captured.

    On a CPU, TorchInductor compiles them, which takes up to a minute when it is done for the first time; on a GPU,
    they are captured as CUDA graphs. Logits are the same up to rounding, which is proved first: a sequence is
    decoded with rejections, compiled and not. If they differ, or something fails, or layers are recurrent, a
    warning says why and the model is returned unchanged. The weights are shared with `loaded`.

    Args:
        loaded: A model on a CPU or a GPU. Pack it before, if at all.

    Raises:
        ModelError: Its passes cannot have a fixed shape. The message has the reason.
    """
    reason = why_not(loaded)
    if reason is not None:
        raise ModelError(f"{loaded.name}: {reason}. Remove `compile`.")
    passes = passes_of(loaded)
    for rows in (1, 2) if loaded.device.type == "cuda" else (1,):  # code for more rows is compiled when it is used
        if passes.failed is None:
            prove(passes.model, rows)
    return loaded if passes.failed else passes.model


def compile_as_set(loaded: LoadedModel, setting: bool | Literal["auto"]) -> LoadedModel:
    """Apply the setting `compile` to a model.

    Args:
        loaded: A model.
        setting: `auto` compiles nothing as yet: captured passes have not run on a GPU.

    Raises:
        ModelError: `setting` is True and the passes cannot have a fixed shape.
    """
    return compile_model(loaded) if setting is True else loaded


def why_not(loaded: LoadedModel) -> str | None:
    """Return why the passes of a model cannot be compiled, or None."""
    if loaded.spread:
        return "its weights are spread over devices, or shared by processes, which excludes `compile`"
    if loaded.device.type not in ("cpu", "cuda"):
        return f"forward passes are compiled on a CPU or a CUDA GPU; this model is on {loaded.device}"
    if not loaded.family.ragged:
        return "sequences at different positions take a forward pass each, so that its shapes differ"
    if loaded.family.rotary_switch is not None:
        return "its rotary frequencies change with length, which a compiled pass cannot follow"
    if loaded.device.type == "cuda" and loaded.encoder_decoder:
        return "what its encoder says has another size for each source, which a CUDA graph cannot follow"
    return None


def passes_of(loaded: LoadedModel) -> StaticPasses:
    """Return the passes that suit a model's device, of which none is captured yet."""
    allowed = tolerance(loaded, loaded.model.dtype)
    if loaded.device.type == "cuda":
        return GraphPasses(loaded, allowed)
    from specdec_core.models.fast.inductor import InductorPasses  # which takes a second to import

    return InductorPasses(loaded, allowed)


def prove(compiled: LoadedModel, rows: int = 1) -> None:
    """Decode sequences with rejections, compiled and not, and compare the logits.

    Args:
        compiled: A compiled model. If they differ, its passes have `failed`, and a warning has said so.
        rows: Number of sequences, 1 or 2.
    """
    passes = compiled.passes
    assert passes is not None
    with passes.guarded():
        if compiled.family.recurrent:
            raise StaticError("padding would change the states of its recurrent layers, so that shapes differ")
        allowed = tolerance(compiled, compiled.model.dtype)
        for expected, found in zip(
            _decoded(replace(compiled, passes=None), rows), _decoded(compiled, rows), strict=True
        ):
            error = relative_error(found, expected)
            if not error <= allowed:
                raise StaticError(f"relative error {error:.1e}, tolerance {allowed:.0e}")


@inference_only
def _decoded(loaded: LoadedModel, rows: int) -> list[Tensor]:
    """Return the logits after each token, in the order of passes and rows."""
    sources, encoded = example_sources(loaded, rows)
    prompts = (
        [[loaded.start_id or 0]] * rows
        if loaded.encoder_decoder
        else [list(range(3, 12)), list(range(8, 12))][:rows]
    )
    prompts = [[token % loaded.vocab_size for token in row] for row in prompts]
    session = ModelSession(loaded, rows, 40, sources, encoded=encoded)
    session.forward(prompts)
    logits = []
    for number, (width, drafted, kept) in enumerate(_SCRIPT):
        draft = (torch.arange(width)[None] + torch.tensor([[5 * number], [7 * number]])[:rows]) % loaded.vocab_size
        output = session.forward([[(number + 2) % loaded.vocab_size]] * rows, draft, drafted[:rows])
        logits += [output[row, : drafted[row] + 1].clone() for row in range(rows)]
        lengths = zip(session.lengths, drafted, kept, strict=False)
        session.rollback([length - new + old for length, new, old in lengths])
    session.close()
    return logits
