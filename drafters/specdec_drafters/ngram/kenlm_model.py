"""N-gram models in KenLM: candidates of a bounded number, each scored by the `kenlm` package.

References:
    Heafield 2011 (KenLM: its states, and the binaries that it maps into memory); https://kheafield.com/code/kenlm/.
"""

import hashlib
import logging
import math
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from specdec_core.interface import Candidates, ConfigError, TargetInfo
from specdec_core.interface.errors import PluginWarning
from specdec_core.interface.files import input_path, writing_file
from specdec_drafters.ngram.candidates import NgramModel, most_probable
from specdec_drafters.settings import NgramConfig

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
    model: "ScoredWords", path: Path, vocab_size: int, unigrams: NDArray[np.int32], log_p: NDArray[np.float32]
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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"
    places = [path.parent / name, cache / name]
    for place in places:
        found = _read(place, vocab_size)
        if found is not None:
            return found
    made = find_successors(model, vocab_size, unigrams, log_p)
    _keep(made, places)
    return made


def find_successors(
    model: "ScoredWords", vocab_size: int, unigrams: NDArray[np.int32], log_p: NDArray[np.float32]
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
        backed_off = next((at for at in reversed(range(len(ids))) if not model.follows(state, int(ids[at]))), None)
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


LN_10 = math.log(10.0)
WORDS = ("ids", "tokens", "text")
WINDOW = 1024
"""In how many tokens before the last one the drafter looks for what followed it."""
_SAID = re.compile(
    r"Cannot read model '.*' \((?:.* threw \w+(?: because `.*')?\. )?(.*?)(?: Byte: \d+)?\)", re.DOTALL
)
_UNKNOWN = "<unk>"
_NOT_DRAFTED = {"<s>", _UNKNOWN}
_BELOW = 20.0


class KenlmContext(NamedTuple):
    """What the next token depends on.

    Attributes:
        last: The last token, -1 if there is none.
        state: KenLM's state after the last `order - 1` tokens, or after `<s>` and all tokens of a shorter text.
        seen: Tokens that followed `last` in the text and that are not candidates anyway, ascending.
    """

    last: int
    state: Any
    seen: tuple[int, ...]


class ScoredWords:
    """A model that the `kenlm` package has loaded, and the word of each token id.

    Args:
        model: The model, a `kenlm.Model`.
        words: For each of the V token ids its word, or None if it has none.

    Attributes:
        known: `[W]` int32, the ids that the model has as words, ascending. No other id is drafted.
        order: The length of the longest n-grams.
    """

    def __init__(self, model: Any, words: Sequence[str | None]) -> None:
        from kenlm import State  # not at the top: the other n-gram models do not need the package

        self._model = model
        self._new_state = State
        self._words = [_UNKNOWN if word is None else word for word in words]
        ids = [id_ for id_, word in enumerate(self._words) if word not in _NOT_DRAFTED and word in model]
        self.known = np.array(ids, dtype=np.int32)
        self.order: int = model.order

    def word(self, token: int) -> str:
        """Return the word of a token id; `<unk>` if it has none."""
        return self._words[token]

    def state(self, tokens: Iterable[int], *, begins: bool) -> Any:
        """Return the state after some tokens; after `<s>` and them if they begin a sentence."""
        state, after = self._new_state(), self._new_state()
        (self._model.BeginSentenceWrite if begins else self._model.NullContextWrite)(state)
        for token in tokens:
            self._model.BaseScore(state, self._words[token], after)
            state, after = after, state
        return state

    def scores(self, state: Any, ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float32]:
        """Return ln p of each token id after a state: float32, as long as `ids`."""
        words, unused = map(self._words.__getitem__, ids), self._new_state()
        log10 = map(self._model.BaseScore, repeat(state), words, repeat(unused))
        return np.fromiter(log10, dtype=np.float32, count=len(ids)) * np.float32(LN_10)

    def follows(self, state: Any, token: int) -> bool:
        """Return whether the model has an n-gram of this token after a state's last words."""
        return bool(self._model.BaseFullScore(state, self._words[token], self._new_state()).ngram_length > 1)


class KenlmCandidates(NgramModel[KenlmContext]):
    """Chooses the candidates of each context, and scores them in KenLM's state.

    They are the tokens that follow the last one in the model, from a table, then the most probable of all tokens,
    until there are enough; and those that followed the last token in the text. Of more than enough, they are the
    most probable. Nothing is kept about a sequence: a state has at most `order - 1` words, and is made from the
    last tokens each time.

    Args:
        model: The model.
        path: Its file, beside which the table is kept.
        vocab_size: V.
        most: The most candidates of a context, at least 1.
    """

    def __init__(self, model: ScoredWords, path: Path, vocab_size: int, most: int) -> None:
        super().__init__(max(model.order - 1, WINDOW + 1), most)
        self._model = model
        self._vocab_size = vocab_size
        self._most = most
        unigrams = model.scores(model.state((), begins=False), model.known)
        order = np.argsort(-unigrams, kind="stable")
        self._unigrams = model.known[order]
        self._successors = load_successors(model, path, vocab_size, self._unigrams, unigrams[order])
        # Those that the model does not know come last, and are never drafted.
        self._ranks = np.full(vocab_size, -1, dtype=np.int64)
        self._ranks[self._unigrams] = np.arange(len(order))

    def context(self, tokens: Sequence[int]) -> KenlmContext:
        """Return the context; a sequence shorter than the model's memory is taken to begin a sentence."""
        length = self._model.order - 1
        state = self._model.state(tokens[-length:], begins=len(tokens) < length)
        if not tokens:
            return KenlmContext(-1, state, ())
        return KenlmContext(tokens[-1], state, self._seen(tokens))

    def row(self, context: KenlmContext) -> NDArray[np.float32]:
        """Return ln p of the candidates `[V]`; that of other tokens is far below."""
        chosen = self.after(context)
        row = np.full(self._vocab_size, chosen.log_weights.min() - np.float32(_BELOW), dtype=np.float32)
        row[chosen.ids] = chosen.log_weights
        return row

    def _seen(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return what followed the last token before and is not a candidate in any case, ascending."""
        last, end, found = tokens[-1], len(tokens) - 1, set[int]()
        at = max(end - WINDOW, 0)
        try:
            while True:
                at = tokens.index(last, at, end) + 1
                found.add(tokens[at])
        except ValueError:
            pass
        if not found:
            return ()
        seen = np.array(sorted(found))
        own, ranks = self._successors.after(last), self._ranks[seen]
        new = (ranks >= self._most - len(own)) & ~(seen[:, None] == own).any(1)
        return tuple(seen[new].tolist())

    def _choose(self, context: KenlmContext) -> Candidates:
        own = self._successors.after(context.last)[: self._most]
        seen = np.array(context.seen, dtype=np.int32)
        ids = np.unique(np.concatenate([own, self._unigrams[: self._most - len(own)], seen]))
        return Candidates(*most_probable(ids, self._model.scores(context.state, ids.tolist()), self._most))


def load_kenlm(config: NgramConfig, target: TargetInfo) -> KenlmCandidates:
    """Return the model that the `kenlm` setting names.

    Raises:
        ConfigError: KenLM cannot read the file, the target has no tokenizer for `words`, or the words of the model
            are not its tokens.
    """
    assert config.kenlm is not None, "the caller checks it"
    if config.words != "ids" and target.tokenizer is None:
        raise ConfigError(
            f"drafter 'ngram': with words: {config.words}, the words of the KenLM model are what the target's "
            "tokenizer writes, but the target has none. Give a model of token ids, or a target with a tokenizer."
        )
    path = input_path(config.kenlm, target.folder)
    loaded = _load(path, config.load_method)
    kinds = [kind for kind in WORDS if kind == "ids" or target.tokenizer is not None]
    models = {kind: ScoredWords(loaded, _words(kind, target)) for kind in kinds}
    counts = {kind: len(model.known) for kind, model in models.items()}
    most = max(counts.values())
    if most == 0:
        raise ConfigError(
            f"drafter 'ngram': no word of {path} is a token of the target. Make a model of its token ids; for "
            "words of another tokenizer, use the drafter 'translated'."
        )
    if counts[config.words] < most:
        best = max(counts, key=lambda kind: counts[kind])
        raise ConfigError(
            f"drafter 'ngram': {path} has {counts[config.words]} of the target's {target.vocab_size} tokens as "
            f"words by words: {config.words}, and {most} by words: {best}. Set words: {best}."
        )
    return KenlmCandidates(models[config.words], path, target.vocab_size, config.candidates)


def _load(path: Path, load_method: str) -> Any:
    """Return a `kenlm.Model`."""
    import kenlm  # see above

    settings = kenlm.Config()
    settings.show_progress = False
    settings.arpa_complain = kenlm.ARPALoadComplain.NONE
    settings.load_method = getattr(kenlm.LoadMethod, load_method.upper())
    try:
        return kenlm.Model(str(path), settings)
    except OSError as error:
        raise ConfigError(f"KenLM cannot read {path}: {_reason(error)}") from error


def _words(kind: str, target: TargetInfo) -> list[str | None]:
    """Return the word of each token id."""
    if kind == "ids":
        return list(map(str, range(target.vocab_size)))
    words: list[str | None] = [None] * target.vocab_size
    for token, id_ in target.tokenizer.get_vocab().items():
        if id_ < target.vocab_size:
            text = target.tokenizer.convert_tokens_to_string([token]).strip() if kind == "text" else token
            words[id_] = text or None
    return words


def _reason(error: OSError) -> str:
    """Return what KenLM says about a file, without the place in its source, and what to do about a high order."""
    said = _SAID.fullmatch(str(error))
    reason = (said[1] if said else str(error)).split("  If")[0].rstrip(".")
    if "compiled to support" in reason:
        reason += "; install the package again with MAX_ORDER in the environment set to the order of the model"
    return f"{reason}."
