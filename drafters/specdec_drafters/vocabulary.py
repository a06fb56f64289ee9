"""Whether two models number their tokens alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specdec_core.errors import ModelError

if TYPE_CHECKING:
    from specdec_core.border import TargetInfo
    from specdec_core.models import LoadedModel

SHOWN = 3


def check_vocabulary(target: TargetInfo, drafter: LoadedModel, name: str = "transformer") -> None:
    """Refuse a drafter whose token ids mean something else than the target's.

    With both tokenizers at hand every entry is compared; then the models may differ in how many logits they pad
    their vocabulary to. Without them only equal numbers of logits can be trusted.

    Args:
        target: What is drafted for.
        drafter: The model that drafts.
        name: What the drafter is called in a study.

    Raises:
        ModelError: with both sizes and the first entries that differ.
    """
    whose = f"drafter {name!r}: the vocabulary of {drafter.name}"
    advice = (
        "Drafts are token ids, so both must number their tokens alike: choose a drafter of the target's family."
    )
    if target.tokenizer is None or drafter.tokenizer is None:
        if drafter.vocab_size != target.vocab_size:
            raise ModelError(
                f"{whose} has {drafter.vocab_size} entries, the target's {target.vocab_size}, and without both "
                f"tokenizers they cannot be compared. {advice}"
            )
        return
    theirs, ours = _entries(target.tokenizer), _entries(drafter.tokenizer)
    differing = [id_ for id_ in sorted(theirs.keys() | ours.keys()) if theirs.get(id_) != ours.get(id_)]
    if differing:
        shown = "; ".join(
            f"id {id_}: target {_shown(theirs, id_)}, drafter {_shown(ours, id_)}" for id_ in differing[:SHOWN]
        )
        raise ModelError(
            f"{whose} has {len(ours)} entries, the target's {len(theirs)}, and {len(differing)} differ. "
            f"The first: {shown}. {advice}"
        )


def _entries(tokenizer: Any) -> dict[int, str]:
    return {id_: token for token, id_ in tokenizer.get_vocab().items()}


def _shown(entries: dict[int, str], id_: int) -> str:
    return repr(entries[id_]) if id_ in entries else "nothing"
