"""Unit tests compute with the pins of the tiny profile, which act only before torch is first imported.

That includes one thread, in every worker. No test fails because a machine is slow: hypothesis gets no deadline.
Triton's kernels are interpreted on the CPU, which they learn when Triton is imported; `make gpu` sets 0.
"""

import os

from hypothesis import settings

from labs_lib.runtime import start

os.environ.setdefault("TRITON_INTERPRET", "1")
start("tiny")
settings.register_profile("labs", deadline=None)
settings.load_profile("labs")
