"""The tokens that follow each token in a KenLM model: found once by scoring pairs, and kept in a file."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specdec_core.interface import ConfigError
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.files import writing_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from specdec_drafters.ngram.kenlm_model import ScoredWords

MOST_SUCCESSORS = 512
"""The most successors of a token that are kept: the most probable ones."""
MOST_PAIRS = 1 << 26
"""About how many pairs of tokens are scored, a minute of work. Up to 8,192 words, these are all pairs."""
FEWEST_TRIED = 512
"""After each token, at least so many of the most probable tokens are tried."""
_VERSION = "1"
_TOLERANCE = 1e-4
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Successors:
    """The tokens that follow each token, the most probable first.

    Attributes:
        ids: `[S]` int32, the successors of token 0, then those of token 1, and so on.
        first: `[V + 1]` int64, where those of each token begin.
    """

    ids: NDArray[np.int32]
    first: NDArray[np.int64]

    def after(self, token: int) -> NDArray[np.int32]:
        """Return the successors of a token; none of -1."""
        return self.ids[self.first[token] : self.first[token + 1]] if token >= 0 else self.ids[:0]


def load_successors(
    model: ScoredWords, path: Path, vocab_size: int, unigrams: NDArray[np.int32], log_p: NDArray[np.float32]
) -> Successors:
    """Return the table of a model from its file, or make it and keep it there.

    The file lies beside the model or, where that folder is read-only, in the user's cache. Its name has a digest
    of the words and their probabilities, so that a table of another model or another vocabulary is not read.

    Args:
        model: The model.
        path: Its file.
        vocab_size: V.
        unigrams: `[W]`, the ids that the model knows, the most probable first.
        log_p: `[W]`, ln p of each.
    """
    digest = hashlib.sha256(f"{_VERSION} {vocab_size} {path.stat().st_size} {model.order}".encode())
    digest.update("\n".join(map(model.word, unigrams.tolist())).encode())
    digest.update(unigrams.tobytes() + log_p.tobytes())
    name = f"{path.name}.{digest.hexdigest()[:16]}.successors"
    places = [path.parent / name, _cache_folder() / name]
    for place in places:
        found = _read(place, vocab_size)
        if found is not None:
            return found
    made = find_successors(model, vocab_size, unigrams, log_p)
    _keep(made, places)
    return made


def find_successors(
    model: ScoredWords, vocab_size: int, unigrams: NDArray[np.int32], log_p: NDArray[np.float32]
) -> Successors:
    """Find the successors of each token: those whose probability is not what backing off gives."""
    tried = _tried(np.exp(log_p))
    if tried.sum() > MOST_PAIRS // 4:
        _LOG.warning("finding the successors of %d words in the KenLM model; it takes a minute, once", len(tried))
    nothing = model.state((), begins=False)
    rows: list[NDArray[np.int32]] = [unigrams[:0]] * vocab_size
    for token, count in zip(unigrams.tolist(), tried.tolist(), strict=True):
        state = model.state((token,), begins=False)
        if state == nothing:
            continue  # no n-gram begins with it
        ids = unigrams[:count]
        scores = model.scores(state, ids.tolist())
        backed_off = _backed_off(model, state, ids)
        follows = (
            np.ones(count, dtype=np.bool_)
            if backed_off is None
            else np.abs(scores - log_p[:count] - (scores - log_p[:count])[backed_off]) > _TOLERANCE
        )
        own, scores = ids[follows], scores[follows]
        rows[token] = own[np.argsort(-scores, kind="stable")[:MOST_SUCCESSORS]]
    first = np.zeros(vocab_size + 1, dtype=np.int64)
    np.cumsum(list(map(len, rows)), out=first[1:])
    return Successors(np.concatenate(rows), first)


def _backed_off(model: ScoredWords, state: object, ids: NDArray[np.int32]) -> int | None:
    """Return the place of a token that does not follow a state; None if all do."""
    return next((at for at in reversed(range(len(ids))) if not model.follows(state, int(ids[at]))), None)


def _tried(probability: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return how many of the most probable tokens to try after each, `[W]`, the most probable first.

    If all pairs are too many, the number grows with the probability of the token, up to all W. By Zipf's law, what
    the table misses is then least for its size.
    """
    size = len(probability)
    if size * size <= MOST_PAIRS:
        return np.full(size, size, dtype=np.int64)
    lowest, highest = 0.0, float(size / probability.min())
    tried: NDArray[np.int64]
    for _ in range(100):
        scale = (lowest + highest) / 2
        tried = np.clip(scale * probability, min(FEWEST_TRIED, size), size).astype(np.int64)
        lowest, highest = (scale, highest) if tried.sum() < MOST_PAIRS else (lowest, scale)
    return tried


def _read(path: Path, vocab_size: int) -> Successors | None:
    """Return the table in a file; None if there is none, or none that can be used."""
    try:
        arrays = load_file(path)
        ids, first = arrays["ids"], arrays["first"]
    except (OSError, SafetensorError, KeyError):
        return None
    fits = ids.ndim == 1 and first.shape == (vocab_size + 1,) and first[0] == 0 and first[-1] == len(ids)
    sound = fits and bool((np.diff(first) >= 0).all()) and bool(((ids >= 0) & (ids < vocab_size)).all())
    return Successors(ids.astype(np.int32), first.astype(np.int64)) if sound else None


def _keep(made: Successors, places: Sequence[Path]) -> None:
    """Write a table to the first place that takes it."""
    for place in places:
        try:
            with writing_file(place) as file:
                save_file({"ids": made.ids, "first": made.first}, file)
        except ConfigError:
            continue
        return
    warnings.warn(
        f"drafter 'ngram': the table of successors can be kept neither in {places[0].parent} nor in "
        f"{places[1].parent}, so that it is made again each time. Make one of these folders writable.",
        PluginWarning,
        stacklevel=2,
    )


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"
