"""Suffix automata that grow and shrink with a sequence and record continuations.

A suffix automaton accepts exactly the substrings of a sequence. A *state* is the set of all substrings that end at
the same positions; they are suffixes of the longest of them. Its *suffix link* leads to the state of the next
shorter suffix, which ends at more positions. So the suffixes of the sequence are on the path of links from the
state of the whole sequence to the root.

References:
    Blumer, Blumer, Haussler, Ehrenfeucht, Chen and Seiferas, "The smallest automaton recognizing the subwords of
    a text", Theoretical Computer Science 40, 1985: the automaton and its construction, one token at a time.

    Added here are notes on continuations (`LatestOccurrence`, `FrequentContinuations`), exact for substrings of at
    most `max_match` tokens, and an undo log for the last tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

_ROOT, _NONE = 0, -1


class SuffixAutomaton(ABC):
    """The substrings of one sequence, and its longest suffix that occurred before.

    Adding a token takes amortized constant time plus one visit to each state with a suffix of at most `longest`
    tokens: a few in most sequences, `longest` in a run of one token. Memory is linear in the sequence.

    Why the notes are exact: each token visits the states of all suffixes of at most `longest` tokens. The
    substrings of a state end at the same positions, so a state with one substring that short misses no visit. When
    a state is split, both halves ended at the same positions until then, so the new one copies the notes. A split
    moves the shorter substrings out, so a state too long to be visited never becomes short enough again.

    Args:
        longest: The longest match.
        undo: Number of tokens that can be undone at the cost of adding them; beyond that, `extend` starts over.
    """

    __slots__ = (
        "_end",
        "_length",
        "_lengths",
        "_links",
        "_log",
        "_longest",
        "_next",
        "_notes",
        "_undo",
        "_window",
    )

    def __init__(self, longest: int, undo: int = 0) -> None:
        self._longest = longest
        self._undo = undo
        self._clear()

    def _clear(self) -> None:
        self._length = 0
        # Per state: the length of its longest substring, its suffix link, and its transitions.
        self._lengths: list[int] = [0]
        self._links: list[int] = [_NONE]
        self._next: list[dict[int, int]] = [{}]
        # Per state: the notes of subclasses.
        self._notes: tuple[list[int], ...] = self._first_notes()
        # The states of the whole sequence and of its last `longest` tokens.
        self._end = self._window = _ROOT
        # Per undoable token: the token, `_end` and `_window` before it, the state it split, replaced notes.
        self._log: deque[tuple[int, int, int, int, list[int]]] = deque(maxlen=self._undo)

    def __len__(self) -> int:
        """Number of tokens read."""
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        """Read the part of `tokens`, the whole sequence, that was not read yet."""
        lengths, links, following, longest = self._lengths, self._links, self._next, self._longest
        for token in tokens[self._length :]:
            end, window = self._end, self._window
            split = self._grow(token)
            self._log.append((token, end, window, split, self._note(token, window)))
            self._length += 1
            # `window` is the state of a suffix of at least `longest` tokens or of all there are; so is its
            # successor.
            window = following[window][token]
            while lengths[links[window]] >= longest:
                window = links[window]
            self._window = window

    def _grow(self, token: int) -> int:
        """Add the state of the sequence extended by `token`; return the state that was split, or -1."""
        lengths, links, following = self._lengths, self._links, self._next
        state, split, new = self._end, _NONE, len(lengths)
        lengths.append(self._length + 1)
        following.append({})
        links.append(_ROOT)
        for notes in self._notes:
            notes.append(0)
        self._end = new
        while state != _NONE and (target := following[state].setdefault(token, new)) == new:
            state = links[state]
        if state == _NONE:
            return split
        if lengths[target] > lengths[state] + 1:
            split, target = target, self._split(target, lengths[state] + 1)
            while state != _NONE and following[state].get(token) == split:
                following[state][token] = target
                state = links[state]
        links[new] = target
        return split

    def _split(self, state: int, length: int) -> int:
        """Give the parts of `state` of at most `length` tokens, which end at a new position, their own state."""
        half = len(self._lengths)
        self._lengths.append(length)
        self._next.append(self._next[state].copy())
        self._links.append(self._links[state])
        self._links[state] = half
        for notes in self._notes:
            notes.append(notes[state])
        return half

    def rollback(self, length: int) -> None:
        """Undo all but the first `length` tokens.

        Beyond the undo log, everything is dropped: the next `extend` reads from the beginning.
        """
        surplus = self._length - length
        if surplus > len(self._log):
            self._clear()
        else:
            for _ in range(surplus):
                self._shrink()

    def _shrink(self) -> None:
        """Undo the last token, in the reverse order of `extend`."""
        token, end, window, split, replaced = self._log.pop()
        self._revoke(token, window, replaced)
        links, following = self._links, self._next
        new = self._end
        if split != _NONE:
            links[split] = links[new + 1]  # the clone was added right after the new state
        state = end
        while state != _NONE and following[state].get(token) == new:
            del following[state][token]
            state = links[state]
        if split != _NONE:
            while state != _NONE and following[state].get(token) == new + 1:
                following[state][token] = split
                state = links[state]
        del self._lengths[new:], links[new:], following[new:]
        for notes in self._notes:
            del notes[new:]
        self._end, self._window = end, window
        self._length -= 1

    def match(self) -> tuple[int, int]:
        """Return (size, state) of the longest suffix, up to `longest` tokens, that occurred before."""
        # The state of the whole sequence occurs only here; the state it links to also occurs elsewhere.
        state = self._links[self._window] if self._window == self._end else self._window
        if state == _NONE:  # before the first sequence
            return 0, _ROOT
        return min(self._lengths[state], self._longest), state

    def locate(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return (size, state) of the longest suffix of other `tokens` that is continued here."""
        following, links, lengths = self._next, self._links, self._lengths
        state = size = 0
        for token in tokens[-self._longest :]:
            while state != _ROOT and token not in following[state]:
                state = links[state]
                size = lengths[state]
            if token in following[state]:
                state = following[state][token]
                size += 1
        return self._followed(size, state)

    def _followed(self, size: int, state: int) -> tuple[int, int]:
        """Shorten a substring of `size` tokens in `state` to at most `longest`, with a token after it."""
        state, size = self._shortened(size, state), min(size, self._longest)
        if state == self._end and state != _ROOT:
            state = self._links[state]
            size = self._lengths[state]
        return size, state

    def _shortened(self, size: int, state: int) -> int:
        """Return the state of the last `longest` tokens of a substring of `size` tokens in `state`."""
        if size > self._longest:
            while self._lengths[self._links[state]] >= self._longest:
                state = self._links[state]
        return state

    @abstractmethod
    def continuation(self, tokens: Sequence[int], match: tuple[int, int], count: int) -> Sequence[int]:
        """Return at most `count` tokens that continue a match.

        Args:
            tokens: The sequence that was read.
            match: A result of `match` or `locate` with at least one token.
            count: The most tokens to return.
        """

    def continuations(
        self, tokens: Sequence[int], match: tuple[int, int], count: int, most: int, shortest: int
    ) -> list[Sequence[int]]:
        """Return up to `most` continuations of a match that begin with different tokens.

        The first is `continuation`. After those of the match come those of shorter matches.

        Args:
            tokens: The sequence that was read.
            match: A result of `match` or `locate` with at least one token.
            count: The most tokens of each.
            most: The most continuations.
            shortest: The shortest match.
        """
        found: dict[int, Sequence[int]] = {}
        size, state = match
        while state != _ROOT and size >= shortest and len(found) < most:
            first = self.continuation(tokens, (size, state), count)
            found.setdefault(first[0], first)
            for token in self._ranked(size, state):
                if len(found) == most:
                    break
                if token not in found:
                    longer = self._followed(size + 1, self._next[state][token])
                    more = self.continuation(tokens, longer, count - 1) if longer[0] >= shortest else ()
                    found[token] = [token, *more]
            state = self._links[state]
            size = self._lengths[state]
        return list(found.values())

    def _ranked(self, size: int, state: int) -> list[int]:
        """Return the tokens that followed a match, those with the largest first note first."""
        notes, following = self._notes[0], self._next[state]
        rank = {token: -notes[self._shortened(size + 1, after)] for token, after in following.items()}
        return sorted(following, key=lambda token: (rank[token], token))

    @abstractmethod
    def _first_notes(self) -> tuple[list[int], ...]:
        """Return the lists of notes, with an entry for the root."""

    @abstractmethod
    def _note(self, token: int, window: int) -> list[int]:
        """Record that `token` followed the suffixes of at most `longest` tokens, `window` and its links."""

    @abstractmethod
    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:
        """Restore the notes that `_note` replaced."""


class LatestOccurrence(SuffixAutomaton):
    """Continues a match with the tokens after its latest occurrence.

    An occurrence counts once a token follows it, so the end of the sequence never matches itself. The note of a
    state is the position after its latest occurrence.

    Args:
        longest: The longest match.
        undo: Number of tokens that can be undone cheaply.
        endless: Whether a copy that reaches the end of the sequence continues with itself.
    """

    __slots__ = ("_endless",)

    def __init__(self, longest: int, undo: int = 0, *, endless: bool = True) -> None:
        super().__init__(longest, undo)
        self._endless = endless

    def latest(self, state: int) -> int:
        """Return the position after the latest occurrence of a state from `match` or `locate`."""
        return self._notes[0][state]

    def continuation(self, tokens: Sequence[int], match: tuple[int, int], count: int) -> list[int]:
        """Return `count` tokens after the latest occurrence, or as many as there are; see the base class."""
        position = self.latest(match[1])
        copied = list(tokens[position : position + count])
        if self._endless:
            period = self._length - position
            while len(copied) < count:
                copied.append(copied[-period])
        return copied

    def _first_notes(self) -> tuple[list[int], ...]:
        return ([0],)

    def _note(self, token: int, window: int) -> list[int]:  # noqa: ARG002  (only the position matters)
        latest, links, position = self._notes[0], self._links, self._length
        replaced = []
        while window != _ROOT:
            replaced.append(latest[window])
            latest[window] = position
            window = links[window]
        return replaced

    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:  # noqa: ARG002
        latest, links = self._notes[0], self._links
        for position in replaced:
            latest[window] = position
            window = links[window]


class FrequentContinuations(SuffixAutomaton):
    """Continues a match with its most frequent next token, again after each token.

    Of equally frequent tokens, the latest is taken. After each token, the match is again the longest suffix of
    sequence and copy that has a continuation in the sequence. The notes of a state are its number of occurrences
    and its next token.

    Args:
        longest: The longest match.
        undo: Number of tokens that can be undone cheaply.
        min_match: The copy ends when fewer tokens match.
    """

    __slots__ = ("_min_match",)

    def __init__(self, longest: int, undo: int = 0, *, min_match: int = 1) -> None:
        super().__init__(longest, undo)
        self._min_match = min_match

    def continuation(
        self,
        tokens: Sequence[int],  # noqa: ARG002  (the automaton knows what followed)
        match: tuple[int, int],
        count: int,
    ) -> list[int]:
        """Return at most `count` tokens, each the most frequent after the match by then; see the base class."""
        best, following = self._notes[1], self._next
        size, state = match
        copied: list[int] = []
        while len(copied) < count and size >= self._min_match:
            token = best[state]
            copied.append(token)
            size, state = self._followed(size + 1, following[state][token])
        return copied

    def _first_notes(self) -> tuple[list[int], ...]:
        return [0], [0]

    def _note(self, token: int, window: int) -> list[int]:
        (counts, best), links, following = self._notes, self._links, self._next
        replaced = []
        counted = _NONE
        while window != _NONE:
            continuations = following[window]
            longer = continuations[token]
            if longer != counted:  # several suffixes may lead to one state
                counts[longer] += 1
                counted = longer
            replaced.append(best[window])
            rival = continuations.get(best[window], longer)  # a state without a continuation has no rival
            if counts[longer] >= counts[rival]:
                best[window] = token
            window = links[window]
        return replaced

    def _revoke(self, token: int, window: int, replaced: list[int]) -> None:
        (counts, best), links, following = self._notes, self._links, self._next
        counted = _NONE
        for choice in replaced:
            longer = following[window][token]
            if longer != counted:
                counts[longer] -= 1
                counted = longer
            best[window] = choice
            window = links[window]
