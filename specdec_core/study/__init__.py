"""Studies: what `compare` reads, runs and reports. Importing this imports no torch."""

from specdec_core.study.assembly import load_study
from specdec_core.study.config import StudyConfig, run_model, study_model, study_schema
from specdec_core.study.study import PLAIN, Run, Study, Task

__all__ = [
    "PLAIN",
    "Run",
    "Study",
    "StudyConfig",
    "Task",
    "load_study",
    "run_model",
    "study_model",
    "study_schema",
]
