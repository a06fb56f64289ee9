"""Drafters that change their inputs or global state, or depend on what they must not depend on."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from specdec_core.interface import (
    Dense,
    Drafter,
    DraftRequest,
    DraftSession,
    Proposal,
    SessionInfo,
    TargetInfo,
)
from tests.testing.defects.healthy import (
    POSITIONS,
    Deterministic,
    Hidden,
    Sampling,
    SizeConfig,
    Stateless,
    context,
)


class WritesIntoTheRequest(Deterministic):
    """Appends its draft to the committed tokens of the request.

    Seen in TensorRT-LLM, whose drafters answer by writing into the request.
    """

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        text = cast(list[int], tokens)
        for _ in range(budget):
            text.append((text[-1] + 1) % self.target.vocab_size)
        return text[len(text) - budget :]


class DrawsRowAfterRow(Stateless):
    """Draws by itself, for all rows in turn from one generator: what a row gets depends on how many tokens those
    before it drew.

    Its q is true, and a seed gives the same draft again, as long as nothing changes in the batch.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        vocab = self.target.vocab_size
        numbers = torch.Generator().manual_seed(sum(len(row) for row in request.tokens))
        drafts = [torch.randint(vocab, (budget,), generator=numbers).tolist() for budget in request.budget]
        padded = torch.tensor([draft + [0] * (max(request.budget) - len(draft)) for draft in drafts])
        return Proposal(padded, request.budget, Dense(torch.full((*padded.shape, vocab), 1 / vocab)))


class PrunesTheHead(Sampling):
    """Zeroes rows of the target's output embedding that it does not draft.

    Seen in the transformers library, which prunes the LM head of the assistant in place.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        with torch.no_grad():
            self.target.model.model.get_output_embeddings().weight[-1].zero_()
        return super().open(session)


class ScalesTheEmbeddings(Sampling):
    """Scales the embeddings that it is given, of which all drafters of a target have the same copy."""

    def open(self, session: SessionInfo) -> DraftSession:
        if self.target.features is not None:
            self.target.features.input_embeddings.data.mul_(2)
        return super().open(session)


class WritesBackGamma(Deterministic):
    """Writes how many tokens it drafted last into its own settings, and drafts no more from then on.

    Seen in the transformers library, where gamma is written back into the assistant's config.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        made = super().propose(request)
        if made.longest:
            self.config = SizeConfig(max_gamma=max(made.longest - 1, 1))
        return made

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return super().continuation(tokens, min(budget, self.config.max_gamma))


class ReseedsTorch(Sampling):
    """Seeds torch's global generator at every step.

    Seen in a small peer that reseeds inside the acceptance loop.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        torch.manual_seed(0)
        return super().propose(request)


class DrawsGlobally(Sampling):
    """Adds noise from torch's global generator to its logits, which has no seed.

    Seen wherever `torch.multinomial` is called without a generator.
    """

    def all_logits(self, prefixes: Sequence[Sequence[int]]) -> Tensor:
        return super().all_logits(prefixes) + torch.randn(len(prefixes), self.target.vocab_size)


class LooksAtTheClock(Deterministic):
    """Guesses otherwise at other times."""

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        start = time.perf_counter_ns() // 100 + os.urandom(1)[0]
        return [(start + n) % self.target.vocab_size for n in range(budget)]


class ShufflesWithPython(Deterministic):
    """Breaks ties by Python's global random numbers."""

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        return [random.randrange(self.target.vocab_size) for _ in range(budget)]


class SortsRows(Deterministic):
    """Works on rows sorted by length, as is good for padding, and hands them back in that order.

    Seen in batched inference that packs by length.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        order = sorted(range(len(request.tokens)), key=lambda row: -len(request.tokens[row]))
        made = super().propose(request)
        lengths = made.lengths
        return Proposal(
            made.tokens[order],
            tuple(min(lengths[row], n) for row, n in zip(order, request.budget, strict=True)),
            made.q,
        )


class CopiesFromNeighbors(Deterministic):
    """Looks for continuations in all rows of the batch.

    Seen in suffix trees that all requests of a server share.
    """

    def propose(self, request: DraftRequest) -> Proposal:
        common = [token for row in request.tokens for token in row]
        drafts = [super(CopiesFromNeighbors, self).continuation(common, n) for n in request.budget]
        return Proposal.from_rows(drafts)


class SwitchesGradientsOff(Sampling):
    """Switches gradients off for the whole process, and not for its own forward.

    Seen in scripts that were made into libraries.
    """

    def open(self, session: SessionInfo) -> DraftSession:
        torch.set_grad_enabled(False)
        return super().open(session)


class LeavesLayersOut(Sampling):
    """Drafts with half of its layers, and does not put the others back where it returns early.

    Seen in the transformers library, whose early exit edits `num_hidden_layers` without `finally`.
    """

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        self.layers = 2

    def propose(self, request: DraftRequest) -> Proposal:
        whole, self.layers = self.layers, self.layers // 2
        if not all(request.budget):
            return Proposal.empty(len(request.budget))  # nothing to do for some: left for the next step
        made = super().propose(request)
        self.layers = whole
        return made

    def logits(self, prefix: Sequence[int]) -> Tensor:
        return self.table[(context(prefix) + self.layers) % POSITIONS]


class UsesUpItself(Drafter):
    """A drafter whose second session fails, since the first one took its table away."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(SizeConfig(), target)
        self.inner: Sampling | None = Sampling(target)

    def open(self, session: SessionInfo) -> DraftSession:
        inner, self.inner = self.inner, None
        if inner is None:
            raise RuntimeError("the table is in use")
        return inner.open(session)


class SetsAPadToken(Sampling):
    """Gives the target's tokenizer a padding token, and has it pad on the left.

    Seen in many scripts: models for text have no padding token of their own.
    """

    declares: ClassVar[dict[str, object]] = {"needs_tokenizer": True}

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        tokenizer: Any = target.tokenizer
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"


class WritesIntoHiddenStates(Hidden):
    """Scales the hidden states that it was handed in place."""

    def read(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return hidden.div_(2)


class TradesPrecision(Sampling):
    """Has the whole process multiply in lower precision, for speed."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        torch.set_float32_matmul_precision("medium")


class SetsTheEnvironment(Sampling):
    """Sets a variable of the environment, for libraries that it loads.

    Seen with `TOKENIZERS_PARALLELISM`.
    """

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        os.environ["PLANTED_PARALLELISM"] = "false"


class ComputesInHalf(Sampling):
    """Enters autocast for its own forward, and does not leave it."""

    def open(self, session: SessionInfo) -> DraftSession:
        torch.autocast("cpu").__enter__()
        return super().open(session)


class MovesToItsFiles(Deterministic):
    """Makes a folder of its own the working directory of the process."""

    def open(self, session: SessionInfo) -> DraftSession:
        os.chdir("/")
        return super().open(session)


class HandlesSignals(Deterministic):
    """Ignores SIGTERM, so that its tables are not lost."""

    def open(self, session: SessionInfo) -> DraftSession:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().open(session)


class LeavesAThread(Deterministic):
    """Starts a thread for each session, and does not end it."""

    def open(self, session: SessionInfo) -> DraftSession:
        threading.Thread(target=time.sleep, args=(20,), name="planted", daemon=True).start()
        return super().open(session)


class ComputesElsewhere(Sampling):
    """Sets torch's default device, so that what others make lies elsewhere."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__(target)
        torch.set_default_device("meta")


class DrawsGloballyInTheEnd(Deterministic):
    """Takes from torch's global generator, in texts of more than 25 tokens only."""

    def continuation(self, tokens: Sequence[int], budget: int) -> list[int]:
        if len(tokens) > 25:
            torch.rand(1)
        return super().continuation(tokens, budget)
