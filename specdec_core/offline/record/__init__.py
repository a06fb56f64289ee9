"""Records: texts of a target with the probability of each token.

Importing this package imports neither torch nor numpy; the names below are imported on first use.
"""

from typing import TYPE_CHECKING

from specdec_core._lazy import lazy_attributes

if TYPE_CHECKING:
    from specdec_core.offline.record.format import (
        PartHeader,
        Record,
        RecordedText,
        RecordHeader,
        RecordPart,
        VerifyTimes,
    )
    from specdec_core.offline.record.reader import read_record
    from specdec_core.offline.record.writer import RecordWriter

__all__ = [
    "PartHeader",
    "Record",
    "RecordHeader",
    "RecordPart",
    "RecordWriter",
    "RecordedText",
    "VerifyTimes",
    "read_record",
]

lazy_attributes(
    globals(),
    {
        "specdec_core.offline.record.format": (
            "PartHeader",
            "Record",
            "RecordedText",
            "RecordHeader",
            "RecordPart",
            "VerifyTimes",
        ),
        "specdec_core.offline.record.reader": ("read_record",),
        "specdec_core.offline.record.writer": ("RecordWriter",),
    },
)
