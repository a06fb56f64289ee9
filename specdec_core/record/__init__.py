"""Records: texts of a target with the probability of each token. Importing this imports no torch."""

from specdec_core.record.reader import read_record
from specdec_core.record.record import (
    PartHeader,
    Record,
    RecordedText,
    RecordHeader,
    RecordPart,
    VerifyTimes,
)
from specdec_core.record.writer import RecordWriter

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
