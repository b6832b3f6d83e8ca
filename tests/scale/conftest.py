"""Tests of lab 07's engine: those that need TRL are skipped, with the reason, where it is not installed."""

import pytest

from labs_lib.optional import absent
from labs_lib.scale.engine import COMMAND, PACKAGES


def pytest_collection_modifyitems(items):
    lacking = absent(PACKAGES)
    for item in items:
        if lacking and item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(lacking)}: {COMMAND}"))
