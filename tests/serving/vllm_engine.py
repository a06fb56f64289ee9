"""vLLM itself, with its engine in this process. `.ci/run vllm` makes the environment and sets its variables."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch

from specdec_core.decoding.decoder import Decoder
from specdec_core.interface.controllers import ScriptedGamma
from specdec_core.models import LoadedModel
from tests.commands import run_command

GAMMA, TOKENS = 4, 64


@dataclass(frozen=True)
class Text:
    """What a prompt became.

    Attributes:
        tokens: The new tokens.
        drafts: Draft tokens, and accepted ones, of each step that had a draft.
        passes: Number of forward passes, where it is known.
        drafted: The draft tokens of each step that had a draft, where they are known.
    """

    tokens: list[int]
    drafts: list[tuple[int, int]]
    passes: int | None = field(default=None, compare=False)
    drafted: list[list[int]] = field(default_factory=list, compare=False)


def export(folder: Path, drafter: Any) -> dict[str, Any]:
    """Export a drafter; return the keys of the `--speculative-config` that is printed, and make it importable."""
    for name in [name for name in sys.modules if name.startswith("exported_")]:
        del sys.modules[name]  # of an earlier export
    words = ["export", str(folder), "--to", "vllm", "--drafter", json.dumps(drafter), "--gamma", str(GAMMA)]
    done = run_command(*words)
    assert done.exit_code == 0, done.output
    sys.path.insert(0, str(folder))
    lines = [line for line in done.output.splitlines() if "--speculative-config" in line]
    words = shlex.split(lines[-1])
    return json.loads(words[words.index("--speculative-config") + 1])


@contextmanager
def engine(model: Path | str, config: dict[str, Any] | None = None, **more: Any) -> Iterator[Any]:
    """Start vLLM's engine with a `speculative_config`; stop it at the end."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    given: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 32, "seed": 0}
    given |= {"enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": False}
    if config is not None:
        given |= {"speculative_config": config, "per_request_spec_decode_metrics": "detailed"}
    llm = LLM(str(model), **given | more)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def exchange(llm: Any, proposer: str) -> None:
    """Give an engine with a custom proposer another one, which vLLM loads by its name."""
    from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer

    runner = _runner(llm)
    runner.speculative_config.model = proposer
    runner.drafter = create_custom_proposer(runner.vllm_config)


def watch(llm: Any) -> list[list[int]]:
    """Return a list of the drafts from now on, of one request at a time that is not read in chunks."""
    runner, seen = _runner(llm), []
    propose = runner.propose_draft_token_ids

    def watched(*args: Any) -> Any:
        drafts = propose(*args)
        seen.append(torch.as_tensor(drafts).tolist()[0])
        return drafts

    runner.propose_draft_token_ids = watched
    return seen


def _runner(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def served(llm: Any, prompts: Sequence[list[int]], **sampling: Any) -> list[Any]:
    """Decode prompts, as many at a time as the engine takes; return vLLM's outputs in their order."""
    from vllm import SamplingParams

    given = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, **sampling}
    return llm.generate([{"prompt_token_ids": one} for one in prompts], SamplingParams(**given), use_tqdm=False)


def texts(outputs: Sequence[Any]) -> list[Text]:
    """Return the tokens and the drafts of outputs."""
    found = []
    for one in (output.outputs[0] for output in outputs):
        told = one.spec_decode_metrics
        steps = [] if told is None else list(zip(told.per_step_drafted, told.per_step_accepted, strict=True))
        found.append(Text(list(one.token_ids), steps))
    return found


def expected(target: LoadedModel, drafter: Any, prompts: Sequence[list[int]]) -> list[Text]:
    """Return what vLLM must do with a drafter, by our own loop.

    vLLM's first token comes from the prefill, without a draft, and a draft has gamma tokens even where the text
    has room for fewer. So our loop drafts nothing in its first step, and ends after the one that fills the text.
    """
    shared = Decoder(target, drafter, gamma=GAMMA, temperature=0).drafter
    return [_expected(target, shared, prompt) for prompt in prompts]


def _expected(target: LoadedModel, drafter: Any, prompt: list[int]) -> Text:
    plans = chain([[0]], repeat([GAMMA]))
    decoder = Decoder(target, drafter, gamma=ScriptedGamma(GAMMA, plans.__next__), temperature=0)
    tokens: list[int] = []
    drafts, passes, told = [], 0, []
    for step in decoder.stream([prompt], max_new_tokens=TOKENS + GAMMA + 1, ignore_eos=True):
        tokens += step.outcome.committed[0]
        passes += 1
        if drafted := step.outcome.drafted[0]:
            drafts.append((drafted, step.outcome.accepted[0]))
            told.append(list(step.draft_tokens[0]))
        if len(tokens) >= TOKENS:
            break
    return Text(tokens[:TOKENS], drafts, passes, told)
