"""The finished runs of a sweep: reads them from folders or from one file, and joins those of several folders."""

from posattn_jax.analysis.runs.finished import MAY_DIFFER, Complete, Run, Runs, check_same

__all__ = ["MAY_DIFFER", "Complete", "Run", "Runs", "check_same"]
