"""Static passes without a compiler or a GPU: traced, and replayed as they were traced."""

from dataclasses import replace
from typing import Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx

from specdec_core.models import LoadedModel, ModelSession
from specdec_core.models.fast.compiling import passes_of, why_not
from specdec_core.models.fast.cuda_graphs import GraphPasses
from specdec_core.models.fast.inductor import InductorPasses
from specdec_core.models.fast.static import StaticPasses

TOLERANCE = 1e-4


def traced(function: Any, arguments: Any, _cache: Any) -> Any:
    """Capture as a CUDA graph does: with the numbers and branches of this pass, and its sizes."""
    return make_fx(function)(*arguments)


def fixed(loaded: LoadedModel) -> StaticPasses:
    """Return passes as on a GPU, one for each size. Those of encoder-decoder models run eagerly."""
    return GraphPasses(loaded, TOLERANCE, traced)


def symbolic(loaded: LoadedModel) -> StaticPasses:
    """Return passes as on a CPU, one for all sizes."""
    return InductorPasses(loaded, TOLERANCE, lambda graph, *_, **__: graph)


KINDS = {"fixed": fixed, "symbolic": symbolic, "device": passes_of}
"""`device` is what users get: CUDA graphs, or what Inductor compiles."""


def compiled(loaded: LoadedModel, kind: str) -> LoadedModel:
    """Return a model with static passes."""
    return replace(loaded, passes=KINDS[kind](loaded))


def compile_everything(patch: pytest.MonkeyPatch, kind: str) -> None:
    """Let each session of a model that can be compiled run static passes."""
    known: dict[int, Any] = {}
    opened = ModelSession.__init__

    def open_static(self: ModelSession, loaded: LoadedModel, *args: Any, **keywords: Any) -> None:
        if loaded.passes is None and hasattr(loaded.model, "generate") and why_not(loaded) is None:
            model, passes = known.setdefault(id(loaded.model), (loaded.model, KINDS[kind](loaded)))
            assert model is loaded.model  # it is kept, so that its id is not another's
            loaded = replace(loaded, passes=passes)
        opened(self, loaded, *args, **keywords)

    patch.setattr(ModelSession, "__init__", open_static)
