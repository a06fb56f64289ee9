"""Studies: what `compare` reads, runs and reports. Importing this imports no torch."""

from specdec_core.study.config import StudyConfig, run_model, study_model, study_schema
from specdec_core.study.study import PLAIN, Run, Study, load_study

__all__ = ["PLAIN", "Run", "Study", "StudyConfig", "load_study", "run_model", "study_model", "study_schema"]
