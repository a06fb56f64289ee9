"""Log weights of a row of the vocabulary as a few ids on top of a background: what tables with back-off give.

A dense row of V numbers costs more than all else that a table look-up takes. These types say the same in a few;
the core standardises, draws and records without writing the row out (`DraftRequest.sample_overlay`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Background:
    """Log weights that many rows share. Make it once and keep it: what is computed from it is kept with it.

    Attributes:
        log_weights: `[V]` float, on any scale; minus infinity for ids that are never drawn. Not to be changed.
        prepared: Where the core keeps what it computed; not for drafters.
    """

    log_weights: NDArray[np.floating]
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)


@dataclass(frozen=True, eq=False)
class OverlayRow:
    """Log weights of all V tokens: of the listed ids their own, of all others those of the background, scaled.

    They need not sum to 1; the core renormalises. A row that is handed over again is drawn from faster, since what
    was computed for it is kept with it: keep rows that come often.

    Attributes:
        background: What the ids stand on.
        ids: `[S]` int, ascending, no id twice; may be empty. Not to be changed.
        log_weights: `[S]` float, on the scale on which the background has `log_scale` added. Not to be changed.
        log_scale: What is added to the background's log weights, for ids that are not listed.
        prepared: Where the core keeps what it computed; not for drafters.
    """

    background: Background
    ids: NDArray[np.integer]
    log_weights: NDArray[np.floating]
    log_scale: float = 0.0
    prepared: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
