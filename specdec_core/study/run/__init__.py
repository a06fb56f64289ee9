"""Running a study and keeping its results."""
