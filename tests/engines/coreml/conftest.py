"""A small model built for Core ML, once for all tests of a process."""

from tests.support.coreml_runs import built, here, pytest_pycollect_makemodule

__all__ = ["built", "here", "pytest_pycollect_makemodule"]
