"""A test of an unknown model family at loading: cached, ragged and rolled-back passes against uncached ones.

A wrong mask or position raises no error. It changes the logits, and decoding would silently be inexact. Some show
only with length: a window of 4,096 tokens matters to no short text. They are tested on a twin of the model that
shares its weights and has windows of a few tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specdec_core.interface.errors import ModelError
from specdec_core.models.device import inference_only
from specdec_core.models.load.checkpoint import check_complete, quiet_loading, without_progress_bar
from specdec_core.models.loaded import TESTED_ATTENTION, LoadedModel, attention_of, inspect_family
from specdec_core.models.run.encoder import Encoded, EncoderOutput
from specdec_core.models.run.model_session import ModelSession
from specdec_core.models.run.prompt_inputs import PromptInputs

TESTED_FAMILIES = frozenset({"gpt2", "llama", "qwen3", "mistral", "gemma3_text", "t5", "bart"})
"""Values of `model_type` that the test suite compares with uncached forward passes."""

_TESTED_WINDOWS = {"mistral": {"sliding_window"}, "gemma3_text": {"sliding_window"}}
"""Settings of tested families whose effect shows only with length, and that are tested, too."""
_LIMITS = {"index_topk", "indexer_budget", "attention_chunk_size"}
"""Other settings that limit which of the earlier tokens are attended to."""
_WINDOW = 6
"""Length of the twin's windows, in tokens."""
_SHORT, _LONG, _STATE = (5, 2), (19, 8), (6, 1)
"""Numbers of tokens of the two sequences, without and with windows, and before a state."""
_Step: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Drafted and accepted tokens of each sequence."""
_STEPS: Sequence[_Step] = (((3, 1), (1, 0)), ((2, 1), (0, 0)))
_STATE_STEPS: Sequence[_Step] = (
    ((2, 0), (0, 0)),
    *(((2, 2), (n, n)) for n in (1, 0, 2, 1, 0)),
    ((2, 1), (0, 0)),
)
"""The same with recurrent layers: some, no and all tokens are accepted, also of a text that begins again."""

_TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.06

FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError, AssertionError)
"""The exceptions of an unknown family's code where it does not take its arguments."""


def probe_model(loaded: LoadedModel) -> LoadedModel:
    """Return a model that is known to decode exactly.

    Args:
        loaded: A model of any family. One of `TESTED_FAMILIES` as the tests have it (not quantized, on one device,
            with torch's attention or eager, with no window that they lack) is returned unchanged. If ragged
            forward passes give wrong logits, or windows cannot be tested, the result runs sequences at different
            positions one by one. If only a token tree does, the result takes none.

    Raises:
        ModelError: Cached forward passes fail or give wrong logits either way, or the model ignores its window.
    """
    model_type = loaded.model.config.model_type
    windows = _windows(loaded) - _TESTED_WINDOWS.get(model_type, set())
    if model_type in TESTED_FAMILIES and not _unusual(loaded) and not windows:
        return loaded
    twin = _twin(loaded, windows) if windows else None
    if windows and twin is None:
        loaded = loaded.row_by_row()  # which leaves windows to the model
    reason = _difference(loaded, twin)
    if reason is None:
        return loaded if _takes_trees(loaded, twin) else loaded.without_trees()
    if loaded.family.ragged and _difference(loaded.row_by_row(), twin and twin.row_by_row()) is None:
        if twin is not None and twin.family.window is not None and _difference(loaded, None) is None:
            raise ModelError(
                f"{loaded.name}: its config has sliding_window = {loaded.family.window}, which its attention "
                "ignores and the cache of generate() applies. Remove it from the config, or use the class that "
                "the weights are of."
            )
        return loaded.row_by_row()
    for change in (_with_single_tokens, LoadedModel.with_own_cache):
        if loaded.family.recurrent and _difference(change(loaded), twin and change(twin)) is None:
            return change(loaded)
    kind = ", ".join(
        [f"model_type {model_type!r}", *_unusual(loaded), *sorted({*windows, *loaded.family.layer_types})]
    )
    raise ModelError(
        f"{loaded.name} ({kind}): after its cache is rolled back, its "
        f"logits are not those of an uncached forward pass ({reason}), so decoding would not be exact. Tested "
        f"families: {', '.join(sorted(TESTED_FAMILIES))}."
    )


def _unusual(loaded: LoadedModel) -> list[str]:
    """Return how a model was loaded, where that may change what its family does."""
    attention = attention_of(loaded.model)
    found = {
        f"attention {attention}": attention not in TESTED_ATTENTION,
        "quantized": loaded.quantized,
        "spread over devices": loaded.spread,
    }
    return [what for what, present in found.items() if present]


def _windows(loaded: LoadedModel) -> set[str]:
    """Return the settings that limit which of the earlier tokens are attended to."""
    settings = loaded.model.config.get_text_config(decoder=True).to_dict()
    return {
        name
        for name, value in settings.items()
        if ("window" in name or name in _LIMITS)
        and not any(part in name for part in ("layer", "pattern"))  # which layers have one
        and type(value) is int
        and value > 0
    }


def _twin(loaded: LoadedModel, windows: set[str]) -> LoadedModel | None:
    """Return a model with the same weights, in the same memory, and short windows; None if there can be none."""
    model = loaded.model
    if loaded.quantized or loaded.spread:
        return None
    config = copy.deepcopy(model.config)
    text_config = config.get_text_config(decoder=True)
    try:
        for name in windows:
            small = min(_WINDOW, getattr(text_config, name))
            for one in (config, text_config):  # with an encoder, the second is a copy
                if hasattr(one, name):
                    setattr(one, name, small)
        with without_progress_bar(), quiet_loading():
            twin, info = type(model).from_pretrained(
                None, config=config, state_dict=model.state_dict(), dtype=model.dtype, output_loading_info=True
            )
        check_complete(loaded.name, info)
        twin = twin.to(loaded.device).eval()
        return replace(loaded, model=twin, family=replace(inspect_family(twin), ragged=loaded.family.ragged))
    except Exception:  # code of any family, with settings it may never have had
        return None


def _difference(loaded: LoadedModel, twin: LoadedModel | None) -> str | None:
    """Decode two sequences with rejections; return how the logits are wrong, or None if they are right.

    If there is a twin, two longer sequences are decoded with it, too.
    """
    lengths, steps = (_STATE, _STATE_STEPS) if loaded.family.recurrent else (_SHORT, _STEPS)
    try:
        if loaded.family.recurrent and _ignores_a_state(loaded):
            return "several tokens after a state do not read it"
        reason = _compare_with_uncached(loaded, lengths, steps)
        if reason is None and twin is not None:
            reason = _compare_with_uncached(twin, _LONG, steps)
            reason = reason and f"past a window, {reason}"
        return reason
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"


def _compare_with_uncached(loaded: LoadedModel, lengths: tuple[int, int], steps: Sequence[_Step]) -> str | None:
    sources, encoded = example_sources(loaded)
    rows = [list(range(3, 3 + lengths[0])), list(range(8, 8 + lengths[1]))]
    if loaded.start_id is not None:
        rows = [[loaded.start_id, *row] if lengths == _LONG else [loaded.start_id] for row in rows]
    rows = [[token % loaded.vocab_size for token in row] for row in rows]
    draft = torch.tensor([[11, 12, 13], [14, 15, 16]]) % loaded.vocab_size
    session = ModelSession(loaded, 2, sum(lengths) + 4 * len(steps) + 1, sources, encoded=encoded)
    for step, (drafted, accepted) in enumerate(steps):
        uncached = [row[read:] for row, read in zip(rows, session.lengths, strict=True)]
        logits = session.forward(uncached, draft[:, : max(drafted)], drafted)
        for number, (row, count) in enumerate(zip(rows, drafted, strict=True)):
            source = sources[number] if loaded.encoder_decoder else None
            read = max(count - step % 3, 0)
            expected = uncached_logits(loaded, [*row, *draft[number, :read].tolist()], source)
            error, allowed = relative_error(logits[number, read], expected), tolerance(loaded, logits.dtype)
            if not error <= allowed:
                return f"relative error {error:.1e}, tolerance {allowed:.0e}"
        rows = [[*row, *draft[n, : accepted[n]].tolist(), 2] for n, row in enumerate(rows)]
        session.rollback([len(row) - 1 for row in rows])
    return None


@inference_only
def _ignores_a_state(loaded: LoadedModel) -> bool:
    """Return whether a recurrent state changes the logits after one token, and not those after two.

    Logits are compared bit by bit: what such a state adds may be less than the tolerance for rounding.
    """
    tokens = [token % loaded.vocab_size for token in (3, 4, 5, 6, 7)]

    def read(end: int, changed: int | None = None) -> tuple[Tensor, int]:
        session = ModelSession(loaded, 1, len(tokens))
        session.forward([tokens[:3]])
        states = session.states
        if changed is not None:
            states[changed].add_(1)
        return session.forward([tokens[3:4]], torch.tensor([tokens[4:end]], dtype=torch.long)), len(states)

    (one, count), (two, _) = read(4), read(5)
    return any(read(5, n)[0].equal(two) and not read(4, n)[0].equal(one) for n in range(count))


def _with_single_tokens(loaded: LoadedModel) -> LoadedModel:
    """Return a copy whose recurrent modules read several tokens behind a state one by one."""
    modules = {name: module for name, module in loaded.model.named_modules() if _takes_states(module)}
    innermost = tuple(
        name
        for name, module in modules.items()
        if sum(map(_takes_states, module.modules())) == 1 and not hasattr(module, "is_causal")  # as attention has
    )
    return replace(loaded, family=replace(loaded.family, single_token_modules=innermost))


def _takes_states(module: Any) -> bool:
    return not {"cache_params", "cache"}.isdisjoint(inspect.signature(module.forward).parameters)


def _takes_trees(loaded: LoadedModel, twin: LoadedModel | None) -> bool:
    """Return whether the logits after each node of a tree, and after a path that was kept, are right."""
    if not loaded.family.trees:
        return False
    try:
        return all(_tree_is_right(one) for one in (loaded, twin) if one is not None)
    except FAILURES:
        return False


def _tree_is_right(loaded: LoadedModel) -> bool:
    sources, encoded = example_sources(loaded, rows=1)
    start = [loaded.start_id] if loaded.start_id is not None else list(range(3, 3 + _LONG[1]))
    row = [token % loaded.vocab_size for token in start]
    nodes, parents = torch.tensor([[11, 12, 13, 14, 15]]) % loaded.vocab_size, torch.tensor([[-1, -1, 0, 1, 3]])
    session = ModelSession(loaded, 1, len(row) + 8, sources, encoded=encoded)
    logits = session.forward([row], nodes, (5,), parents)[0]
    session.keep([[1, 3]])
    after = session.forward([[2]])[0, 0]
    paths = {0: [], 1: [0], 2: [1], 3: [0, 2], 4: [1, 3], 5: [1, 3, 4]}
    pairs = [(logits[n], row + nodes[0, path].tolist()) for n, path in paths.items()]
    pairs.append((after, [*row, *nodes[0, [1, 3]].tolist(), 2]))
    return all(
        relative_error(given, uncached_logits(loaded, tokens)) <= tolerance(loaded, given.dtype)
        for given, tokens in pairs
    )


def prompt_difference(loaded: LoadedModel, prompt: PromptInputs, rows: Sequence[Sequence[int]]) -> str | None:
    """Compare the first passes of a batch with those of plain `generate`.

    Args:
        loaded: The model.
        prompt: What the first of them reads.
        rows: The ids of the prompts, without padding.

    Returns:
        How the logits are wrong, or None if they are right.
    """
    tokens, expected = prompt.plain(loaded, 3)
    try:
        session = ModelSession(loaded, len(rows), max(map(len, rows)) + 2, prompt=prompt)
        first = session.forward(rows)
        logits = torch.cat([first, session.forward(tokens[:, :1].tolist(), tokens[:, 1:2])], dim=1)
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    found, allowed = relative_error(logits, expected), tolerance(loaded, logits.dtype)
    return None if found <= allowed else f"relative error {found:.1e}, tolerance {allowed:.0e}"


def relative_error(logits: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected logit."""
    largest = expected.float().abs().max().clamp(min=torch.finfo().tiny)  # they may all be zero
    return float((logits.float() - expected.float()).abs().max() / largest)


def tolerance(loaded: LoadedModel, dtype: torch.dtype) -> float:
    """Return the relative error of logits of some dtype that is taken for rounding."""
    # Quantized products round to half precision whatever the dtype of the logits.
    return _HALF_TOLERANCE if loaded.quantized else _TOLERANCE.get(dtype, _HALF_TOLERANCE)


def example_sources(loaded: LoadedModel, rows: int = 2) -> tuple[Any, Encoded | None]:
    """Return sources for a model with an encoder, as `uncached_logits` and as `ModelSession` take them.

    Those of an encoder that reads no ids are states that it might have given: the decoder is what is tested.
    """
    if not loaded.encoder_decoder:
        return None, None
    if loaded.reads_ids:
        return [[token % loaded.vocab_size for token in row] for row in ([5, 6, 7, 8], [9, 10])[:rows]], None
    encoder = loaded.model.get_encoder()
    random = torch.Generator().manual_seed(0)
    states = torch.randn(2, 4, encoder.config.hidden_size, generator=random)[:rows]
    states = states.to(loaded.device, loaded.model.dtype)
    return states, Encoded(states, None, encoder)


@inference_only
def uncached_logits(
    loaded: LoadedModel, tokens: Sequence[int], source: Sequence[int] | Tensor | None = None
) -> Tensor:
    """Return the logits after the last token, `[V']`, from a forward pass without a cache.

    Args:
        loaded: The model.
        tokens: Input ids, of the decoder for an encoder-decoder model.
        source: For an encoder-decoder model, input ids of the encoder, or what it gave, `[S, D]`; by default the
            first of `example_sources`.
    """
    ids = torch.tensor([list(tokens)], device=loaded.device)
    given: dict[str, Any] = {"input_ids": ids}
    if loaded.encoder_decoder:
        source = example_sources(loaded, rows=1)[0][0] if source is None else source
        given = {"decoder_input_ids": ids}
        if isinstance(source, Tensor):
            given["encoder_outputs"] = EncoderOutput(last_hidden_state=source[None])
        else:
            given["input_ids"] = torch.tensor([list(source)], device=loaded.device)
    logits = loaded.model(**given, use_cache=False).logits
    last: Tensor = logits[0, -1]
    return last
