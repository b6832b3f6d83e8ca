"""What TRL's resume restores: everything between two rollouts, other answers within one."""

import pytest

from labs_lib.branches import policy_source
from labs_lib.config import load_profile
from labs_lib.scale.resume import resumed_after

TINY = load_profile("tiny")
pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize(("stop", "after", "same"), [(2, [2, 4], True), (3, [3, 5], False)])
def test_a_resume_within_a_rollout_samples_anew(stop, after, same):
    run = resumed_after(TINY, policy_source(TINY, "base"), stop, 6)
    assert run.continuous.sampled_before == [0, 2, 4]
    assert run.rest.sampled_before == after
    assert run.same_answers is same
    assert (run.apart == 0) is same
