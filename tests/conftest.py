"""Unit tests compute with the pins of the tiny profile, which act only before torch is first imported.

That includes one thread, in every worker. No test fails because a machine is slow: hypothesis gets no deadline.
"""

from hypothesis import settings

from labs_lib.runtime import start

start("tiny")
settings.register_profile("labs", deadline=None)
settings.load_profile("labs")
