"""What packing a target's weights is worth on a CPU: the time of a forward over one token, and over drafts.

Both targets read the same tokens after the same context, in turns. The floor of any of these forwards is the time
in which the weights are read from memory once.

    python benchmarks/packed.py
    python benchmarks/packed.py --target builtin:target --inflate-layers 0
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import torch
from _common import floor_seconds, in_turns, ratios, report, spread

from specdec_core.models import LoadedModel, ModelSession, inflate, load_model, pack


def main() -> None:
    """Measure what the options ask for."""
    options = parse()
    torch.set_num_threads(options.threads)
    target = load_model(options.target)
    if options.inflate_layers:
        target = inflate(target, options.inflate_layers, options.inflate_width)
    packed = pack(target)
    cells = {}
    for drafted in options.drafted:
        cells[f"{drafted} plain"] = forward(target, options.context, drafted)
        cells[f"{drafted} packed"] = forward(packed, options.context, drafted)
    seconds, _ = in_turns(cells, options.repeats)
    one = median(seconds[f"{options.drafted[0]} plain"])
    result = {
        "benchmark": "packed",
        "options": vars(options),
        "parameters": sum(weight.numel() for weight in target.model.parameters()),
        "floor_milliseconds": round(1e3 * floor_seconds(target.model), 2),
        "milliseconds": {name: spread([1e3 * second for second in each], 2) for name, each in seconds.items()},
        "in_plain_single_tokens": {name: round(median(each) / one, 2) for name, each in seconds.items()},
        "plain_over_packed": {
            drafted: ratios(seconds[f"{drafted} plain"], seconds[f"{drafted} packed"])
            for drafted in options.drafted
        },
    }
    report(result)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin:target")
    parser.add_argument("--inflate-layers", type=int, default=16, help="0 leaves the target as it is")
    parser.add_argument("--inflate-width", type=int, default=8192)
    parser.add_argument("--context", type=int, default=64, help="tokens that are cached already")
    parser.add_argument("--drafted", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5, 7], help="tokens to verify")
    parser.add_argument("--repeats", type=int, default=15, help="rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def forward(target: LoadedModel, context: int, drafted: int) -> Callable[[], None]:
    """Return a function that reads the last token and a draft behind it, and takes both back."""
    session = ModelSession(target, 1, context + drafted + 1, [[5, 6, 7]] if target.encoder_decoder else None)
    tokens = [[token % 50 + 5 for token in range(context)]]
    draft = torch.arange(7, 7 + drafted)[None]
    session.forward([tokens[0][:-1]], draft[:, :0])

    def step() -> None:
        session.forward([tokens[0][-1:]], draft)
        session.rollback([context - 1])

    return step


if __name__ == "__main__":
    main()
