"""`specdec theory gpu`: the speed-up to expect on a GPU, without one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_core.cli.options.input_options import read_numbers
from specdec_core.cli.options.shared_options import AsJson, Wide, as_config_error, output_console, print_json
from specdec_core.cli.options.study_options import grouped
from specdec_core.costs.gpu.device import (
    Execution,
    Launches,
    WeightType,
    counted_launches,
    devices,
    find_device,
    find_shape,
    shapes,
)
from specdec_core.interface.errors import ConfigError
from specdec_core.offline.profile import read_profile
from specdec_core.study.report.formats import number
from specdec_core.study.report.layout import Column, Prose, ReportTable, Row, for_terminal
from specdec_core.theory.ranges import check, check_gamma

if TYPE_CHECKING:
    from specdec_core.costs.gpu.forecast import GpuForecast

_MAX_GAMMA = 64


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What is forecast: models, acceptance, batches and the GPU."""

    target: Annotated[
        str | None,
        typer.Option(help="Shape of the target: one that --list names, or a folder with a config.json."),
    ] = None
    drafter: Annotated[str | None, typer.Option(help="Shape of the draft model, as for --target.")] = None
    c: Annotated[
        float | None,
        typer.Option(
            help="Instead of --drafter: time to draft one token over the time of a target call; 0 for a lookup.",
            metavar="RATIO",
        ),
    ] = None
    device: Annotated[str, typer.Option(help="The GPU; --list names them.")] = "h100"
    alpha: Annotated[
        str | None,
        typer.Option(help="Expected acceptance rates, from 0 to 1; by default 0.6,0.7,0.8.", metavar="RATES"),
    ] = None
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --alpha: a profile, as `specdec profile` writes it.",
            metavar="FILE",
        ),
    ] = None
    gamma: Annotated[
        int | None, typer.Option(help="The number of draft tokens; by default the best one of up to --max-gamma.")
    ] = None
    max_gamma: Annotated[int, typer.Option(help="The largest gamma to consider.")] = 12
    batch: Annotated[str, typer.Option(help="Numbers of sequences.", metavar="NUMBERS")] = "1,8"
    context: Annotated[str, typer.Option(help="Numbers of cached tokens.", metavar="NUMBERS")] = "1024"
    weights: Annotated[WeightType, typer.Option(help="Dtype of the weights of both models.")] = "bfloat16"
    execution: Annotated[
        Execution,
        typer.Option(
            help="eager: Python launches each operator. graph: the same kernels in a captured graph. fused: "
            "all but matrix products and attention fused into those."
        ),
    ] = "graph"
    gpus: Annotated[int, typer.Option(help="Number of GPUs that share each layer of the target.")] = 1
    plugin: Annotated[
        str | None,
        typer.Option(
            help="Plugin whose launches outside of the models are counted; by default `transformer` with "
            "--drafter, `prompt-copy` with --c.",
            metavar="NAME",
        ),
    ] = None
    temperature: Annotated[float, typer.Option(help="0 for greedy decoding, which launches less.")] = 1.0
    launches: Annotated[
        int | None,
        typer.Option(help="Launches of a step outside of the models, instead of those counted for --plugin."),
    ] = None

    @property
    def drafts_with(self) -> str:
        """The draft model, or c."""
        return self.drafter or f"c = {self.c:g}"


@grouped
def gpu(
    *,
    work: _Work,
    list_known: Annotated[bool, typer.Option("--list", help="List the known GPUs and shapes.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    r"""Forecast the speed-up of a drafter on a GPU. Nothing is measured, and no GPU is needed.

    The operators, bytes and FLOPs of a forward pass are counted on tensors without values. With the bandwidth, the
    throughput and the launch cost of the GPU they give T(k) and c, and Theorem 3.8 gives the speed-up.

    For example:

    ```
    specdec theory gpu --target llama-3-8b --drafter llama-3-1b --device h100
    specdec theory gpu --target llama-3-70b --drafter llama-3-8b --gpus 4
    specdec theory gpu --target llama-3-8b --c 0 --plugin suffix \
        --profile speculation_profile.json
    specdec theory gpu --target t5-11b --drafter t5-small --execution fused
    specdec theory gpu --list
    ```
    """
    if list_known:
        _list(as_json=as_json, wide=wide)
        return
    with as_config_error():
        found = _forecasts(work)
    if as_json:
        derived = ({"improvement": one.improvement, "fits": one.fits} for one in found)
        plain = ({**asdict(one), "costs": one.costs.model_dump()} for one in found)
        print_json([{**one, **more} for one, more in zip(plain, derived, strict=True)])
        return
    console = output_console(wide=wide)
    name = find_device(work.device).name
    shared = f"{work.gpus} × {name}" if work.gpus > 1 else name
    models = f"{work.target} with {work.drafts_with}"
    console.print(Prose(f"Forecast, not a measurement: {models} on {shared}, {work.weights}, {work.execution}."))
    console.print(for_terminal(_table(found, requested=work.gamma is not None)))


def _forecasts(work: _Work) -> list["GpuForecast"]:
    """Return a forecast for each batch size, context and acceptance rate."""
    if work.target is None or (work.drafter is None) == (work.c is None):
        raise ConfigError("give --target, and --drafter or --c; --list names the shapes that are known.")
    check_gamma(work.max_gamma, _MAX_GAMMA, "as every gamma is tried", name="max_gamma")
    if work.gamma is not None:
        check_gamma(work.gamma, _MAX_GAMMA, "as every gamma is tried")
    rates = _rates(work.alpha, work.profile)
    check("temperature", work.temperature)
    batches, contexts = _sizes(work)

    import torch

    from specdec_core.costs.gpu.counting import ModelWork
    from specdec_core.costs.gpu.forecast import Setting, gpu_forecast

    on = find_device(work.device)
    dtype = getattr(torch, work.weights) if work.weights in on.tflops else torch.bfloat16
    target = ModelWork(find_shape(work.target), dtype)
    drafts = ModelWork(find_shape(work.drafter), dtype) if work.drafter is not None else float(work.c or 0)
    outside = _launches(work)
    return [
        gpu_forecast(
            target,
            drafts,
            Setting(on, size, length, work.weights, work.execution, work.gpus, outside),
            rate,
            gamma=work.gamma,
            max_gamma=work.max_gamma,
        )
        for size, length, rate in product(batches, contexts, rates)
    ]


def _sizes(work: _Work) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of sequences and of cached tokens."""
    batches = read_numbers("--batch", work.batch, int)
    if work.gpus < 1 or min(*batches, 1) < 1:
        raise ConfigError(
            f"--gpus {work.gpus} and --batch {work.batch} were given; both take whole numbers from 1."
        )
    contexts = read_numbers("--context", work.context, int)
    if min(contexts) < 1:
        raise ConfigError(f"--context {work.context} was given; it takes whole numbers from 1.")
    return batches, contexts


def _launches(work: _Work) -> Launches:
    """Return the launches of a step outside of the models: those given, or those counted for the plugin."""
    if work.launches is not None:
        return Launches(work.launches, work.launches)
    name = work.plugin or ("transformer" if work.drafter is not None else "prompt-copy")
    return counted_launches(name, sampled=work.temperature > 0, execution=work.execution)


def _rates(alpha: str | None, profile: Path | None) -> Sequence[float | Mapping[int, float]]:
    """Return acceptance rates, or the acceptance lengths of a profile by gamma."""
    if profile is not None:
        if alpha is not None:
            raise ConfigError(f"--alpha {alpha} is part of the profile; omit it, or omit --profile.")
        return [read_profile(profile).accept_lengths()]
    rates = read_numbers("--alpha", alpha or "0.6,0.7,0.8", float)
    for rate in rates:
        check("alpha", rate, 1.0)
    return rates


def _table(found: Sequence["GpuForecast"], *, requested: bool) -> ReportTable:
    columns = (
        Column("batch"),
        Column("context", spare=1),
        Column("alpha"),
        Column("T(0)\nms"),
        Column("T(gamma)\nms", spare=3),
        Column("c"),
        Column("gamma" if requested else "best\ngamma"),
        Column("plain\ntokens/s", spare=2),
        Column("tokens/s"),
        Column("speed-up"),
        Column("memory\nGB", spare=4),
        Column("", numeric=False),
    )
    rows = []
    for one in found:
        verify = one.costs.verify
        cells = (
            str(one.setting.batch),
            str(one.setting.context),
            "" if one.alpha is None else f"{one.alpha:g}",
            number(1e3 * verify[0], 2),
            number(1e3 * verify[one.gamma], 2),
            number(one.costs.c, 3),
            str(one.gamma),
            number(one.plain, 0),
            number(one.speculative, 0),
            number(one.improvement, 2, "×"),
            number(one.memory_gb, 0),
            "" if one.fits else f"does not fit into {one.setting.device.memory_gb:g} GB",
        )
        rows.append(Row(cells))
    return ReportTable(columns, tuple(rows))


def _list(*, as_json: bool, wide: bool) -> None:
    known, models = devices(), shapes()
    if as_json:
        print_json({"devices": {name: asdict(one) for name, one in known.items()}, "shapes": models})
        return
    console = output_console(wide=wide)
    columns = (
        Column("GPU", numeric=False),
        Column("name", numeric=False),
        Column("GB/s"),
        Column("TFLOPS\nbfloat16"),
        Column("GB"),
        Column("source", numeric=False, wraps=True, spare=1),
    )
    rows = [
        Row(
            (
                key,
                one.name,
                f"{one.bandwidth_gbs:g}",
                f"{one.tflops['bfloat16']:g}",
                f"{one.memory_gb:g}",
                one.source,
            )
        )
        for key, one in known.items()
    ]
    console.print(for_terminal(ReportTable(columns, tuple(rows))))
    console.print(Prose(f"Shapes: {', '.join(models)}; or a folder with a config.json."))
