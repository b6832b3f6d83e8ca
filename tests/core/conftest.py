"""Fixtures of the core's tests: the small model is made once, and tests that change it copy it."""

import copy

import pytest
import small_model

from labs_lib.training import grpo


@pytest.fixture(scope="session")
def _pristine():
    return small_model.small_model()


@pytest.fixture
def policy(_pristine):
    return copy.deepcopy(_pristine)


@pytest.fixture
def paid_by_parity(monkeypatch):
    monkeypatch.setattr(grpo, "verify", small_model.parity_verdict)
