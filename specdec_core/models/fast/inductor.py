"""Forward passes compiled for a CPU with TorchInductor.

The pass is traced once with symbolic sizes, so that one compilation serves all widths, lengths and capacities.
Batches, and passes of a single column, are traced on their own. Calls go straight to the compiled code: no guards
are evaluated. Packed and rounded weights are constants of the code ("freezing"), which lets oneDNN fuse
activations and sums into its products.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import add, getitem
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from specdec_core.models.fast.packing import is_packed
from specdec_core.models.fast.products import LANES
from specdec_core.models.fast.static import CAPTURING, CheckedPass, Outputs, Rows, StaticForward, StaticPasses
from specdec_core.models.loaded import LoadedModel
from specdec_core.models.run.cache import SlotCache
from specdec_core.models.run.encoder import EncoderMemory
from specdec_core.models.run.forward import Output

_LOG = logging.getLogger(__name__)

_EXAMPLE = {"rows": 3, "width": 5, "keys": 11, "slots": 23, "source": 7}
"""Sizes with which a pass is traced. They differ, since equal ones would be taken for the same, and are neither 0
nor 1, which would be taken for constants."""


_SMALLEST = 4096
"""Numbers for which a thread of its own pays. Inductor's own default, 512, takes longer to start one."""


class InductorPasses(StaticPasses):
    """Passes compiled by TorchInductor, on first use.

    Args:
        loaded: The model, on a CPU.
        tolerance: As for `CheckedPass`.
        compiler: What compiles a graph; by default Inductor. Like `compile_graph`.
    """

    def __init__(
        self, loaded: LoadedModel, tolerance: float, compiler: Callable[..., Callable[..., Outputs]] | None = None
    ) -> None:
        super().__init__(loaded, tolerance)
        self._compiler = compiler or compile_graph
        self._packed = is_packed(loaded) or loaded.bits is not None
        self._compiled: dict[Any, CheckedPass] = {}

    def run(
        self, cache: SlotCache, memory: EncoderMemory | None, layers: Sequence[int], tokens: Tensor, rows: Rows
    ) -> Output | None:
        """See `StaticPasses`."""
        buffers = cache.buffers()
        source = [] if memory is None else memory.buffers()
        end = max(map(add, rows[0], rows[2]))
        # Code for any size is not for a size of 1.
        if end == 1 or (memory is not None and (not source or source[0].shape[1] == 1)):
            return None
        if tokens.shape[1] == 1 and self._packed:
            # With packed weights, two columns take as long as one. Without, one column is compiled separately.
            tokens = torch.cat([tokens, tokens], dim=1)
        inputs = (tokens, torch.tensor(rows), torch.arange(end), *buffers, *source)
        kind = (cache.rows == 1, tokens.shape[1] == 1, tuple(layers), len(source))
        compiled = self._compiled.get(kind)
        if compiled is None:
            with CAPTURING:
                compiled = self._compiled.get(kind) or self._compile(layers, inputs, len(buffers))
                self._compiled[kind] = compiled
        return Output(*compiled(*inputs))

    def _compile(self, layers: Sequence[int], inputs: Sequence[Tensor], cached: int) -> CheckedPass:
        begun, name = time.perf_counter(), self._loaded.name
        _LOG.warning("%s: compiling a forward pass, which may take a minute if it is new to this machine", name)
        function = StaticForward(self._loaded, layers, cached)
        graph, fakes = trace(function, inputs, cached)
        replay = self._compiler(graph, fakes, frozen=self._packed)
        _LOG.warning("%s: compiled in %.1f s", name, time.perf_counter() - begun)
        return CheckedPass(function, replay, self._tolerance)


def trace(
    function: StaticForward, inputs: Sequence[Tensor], cached: int
) -> tuple[GraphModule, Sequence[FakeTensor]]:
    """Return the operations of a function on inputs of any size of this kind, and inputs without data.

    Args:
        function: The function.
        inputs: Its arguments.
        cached: The number of buffers of the cache among them.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    sizes = _dynamic_sizes(inputs, cached)
    fakes = [_fake(mode, tensor, names) for tensor, names in zip(inputs, sizes, strict=True)]
    with mode:
        graph = make_fx(function)(*fakes)
    fuse_gates(graph)
    return graph, fakes


def fuse_gates(graph: GraphModule) -> None:
    """Let the products with packed weights that make gates and what they multiply apply the gates, too.

    `silu(gate) * up` otherwise reads both from memory, and writes the result there.

    Args:
        graph: The operations of a pass, which are changed.
    """
    aten, ours = torch.ops.aten, torch.ops.specdec
    if not hasattr(ours, "product"):  # the CPU has none
        return
    for silu in graph.graph.find_nodes(op="call_function", target=aten.silu.default):
        chain = [silu]  # silu, the first part of a split, the split, and the product
        while len(chain) < 4 and chain[-1].op == "call_function":
            chain.append(chain[-1].args[0])
        targets = (aten.silu.default, getitem, aten.split_with_sizes.default, ours.product.default)
        if tuple(node.target for node in chain) != targets or len(silu.users) != 1:
            continue
        _, gate, split, product = chain
        (size, *sizes), (gated,) = split.args[1], silu.users
        up = next((node for node in split.users if node is not gate), None)
        parted = sizes == [size] and split.args[2] == -1 and size % LANES == 0 and gate.args[1] == 0
        if parted and gated.target is aten.mul.Tensor and set(gated.args) == {silu, up}:
            with graph.graph.inserting_before(gated):
                fused = graph.graph.call_function(ours.gated_product.default, (*product.args[:5], size))
            gated.replace_all_uses_with(fused)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def compile_graph(graph: GraphModule, fakes: Sequence[FakeTensor], *, frozen: bool) -> Callable[..., Outputs]:
    """Compile a graph with Inductor.

    Args:
        graph: The graph.
        fakes: Inputs without data.
        frozen: Whether weights become constants of the code.
    """
    with warnings.catch_warnings():  # of what torch itself does
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "To copy construct from a tensor", UserWarning)
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx

        with (
            config.patch({"freezing": frozen, "cpp_wrapper": True, "cpp.min_chunk_size": _SMALLEST}),
            tracing(TracingContext(fakes[0].fake_mode)),
        ):
            compiled: Any = compile_fx(graph, fakes)
    return lambda *inputs: tuple(compiled(*inputs))


def _dynamic_sizes(inputs: Sequence[Tensor], cached: int) -> list[dict[int, str]]:
    """Return the dimensions of each input that differ from pass to pass, and what they count."""
    rows = {0: "rows"} if inputs[0].shape[0] > 1 else {}
    width = {1: "width"} if inputs[0].shape[1] > 1 else {}
    tokens, keys, cache = {**rows, **width}, {0: "keys"}, {**rows, 2: "slots"}
    layout = {1: "rows"} if rows else {}
    sizes = [tokens, layout, keys, *[cache] * cached]
    # The encoder's states [B, S, D], their mask [B, S], and keys and values [B, H, S, D].
    return sizes + [{**rows, 2 if tensor.ndim == 4 else 1: "source"} for tensor in inputs[len(sizes) :]]


def _fake(mode: FakeTensorMode, tensor: Tensor, sizes: Mapping[int, str]) -> FakeTensor:
    """Return a tensor without data, some of whose sizes are symbols."""
    shape = [_EXAMPLE[sizes[d]] if d in sizes else size for d, size in enumerate(tensor.shape)]
    dynamic = [DimDynamic.DUCK if d in sizes else DimDynamic.STATIC for d in range(tensor.ndim)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
    return mode.from_tensor(tensor.new_empty(shape), symbolic_context=context)
