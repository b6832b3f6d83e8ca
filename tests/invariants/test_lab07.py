"""Every error to diagnose of lab 07 trips its invariant, and the right thing does not; its definitions run here.

None of these needs TRL: where the lab asks it something, a stand-in answers.
"""

from types import SimpleNamespace

import pytest
import torch
from notebook_definitions import notebook_definitions

from labs_lib.config import load_profile
from labs_lib.errors import VerificationError
from labs_lib.models.base import base_tokenizer
from labs_lib.models.locations import base_location
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.scale.plan import GB, IN_FP32, SHAPES, state_bytes
from labs_lib.scale.prompts import messages
from labs_lib.scale.run import require_whole_groups
from labs_lib.scale.task import VerifierReward, training_examples
from labs_lib.tasks.stock_arithmetic.gallery import WORKED_ANSWERS, WORKED_REWARDS

PROFILE = load_profile("tiny")


@pytest.fixture(scope="module")
def lab():
    """The notebook's functions with the names that they read."""
    space = notebook_definitions(NOTEBOOKS / "07_scale_out.ipynb")
    tokenizer = base_tokenizer(PROFILE.base, ROOT / base_location(PROFILE))
    space |= {"profile": PROFILE, "tokenizer": tokenizer, "eos": tokenizer.eos_token_id}
    space["examples"] = training_examples()[:20]
    space["cut_off"] = space["ids_of"](WORKED_ANSWERS[0], ended=False)
    special = tokenizer.convert_tokens_to_ids("<|im_start|>")
    space["littered"] = [*space["cut_off"], special, tokenizer.eos_token_id]
    return space


def trips(invariant, *wrong, match=None):
    with pytest.raises((AssertionError, VerificationError), match=match):
        invariant(*wrong)


@pytest.mark.diagnoses("cell-008", "require_same_prompts")
def test_a_prompt_without_its_instruction_is_noticed(lab):
    asked = [messages(example.statement) for example in lab["examples"]]
    lab["require_same_prompts"](asked)
    trips(lab["require_same_prompts"], [conversation[1:] for conversation in asked], match="tokens instead of")


@pytest.mark.diagnoses("cell-014", "require_whole_answer")
@pytest.mark.parametrize(("name", "what"), [("cut_off", "cut off"), ("littered", "with a special token inside")])
def test_a_reward_that_reads_the_text_is_noticed(lab, name, what):
    reward = VerifierReward(lab["tokenizer"])
    answers = [lab["ids_of"](text) for text in WORKED_ANSWERS]
    assert lab["as_trl_calls"](reward, answers) == list(WORKED_REWARDS)
    assert lab["as_trl_calls"](lab["reads_the_text"], answers) == list(WORKED_REWARDS)  # so that nobody notices
    lab["require_whole_answer"](reward, what, lab[name])
    trips(lab["require_whole_answer"], lab["reads_the_text"], what, lab[name], match=f"{what} was paid 1")


@pytest.mark.diagnoses("cell-027", "require_same_advantages")
def test_advantages_of_the_sample_are_noticed(lab):
    ours = torch.tensor([1.0, -1.0, 1.0, -1.0])
    lab["batch"] = SimpleNamespace(advantages=ours)
    lab["require_same_advantages"](ours.clone())
    trips(lab["require_same_advantages"], ours * 0.75**0.5, match="up to ≈0.134 apart")


def test_equality_is_to_rounding(lab):
    lab["require_equal"]("gradient", 4e-6, 1e-5)
    trips(lab["require_equal"], "gradient", 2e-5, 1e-5, match="gradient: ≈2e-05 apart")


@pytest.mark.diagnoses("ratio-one", "require_clip_can_act")
def test_old_log_probs_that_are_those_of_now_are_noticed(lab):
    now = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]])
    lab["batch"] = SimpleNamespace(prompt_ids=[[1]], rollout=SimpleNamespace(ids=None))
    lab |= {"answer_logprobs": lambda *_: now, "mask": torch.ones(2, 2, dtype=torch.bool), "pad": 0}
    scored = SimpleNamespace(logprobs=lambda policy: now + 1e-5)
    kept, lost = SimpleNamespace(inputs={"old_per_token_logps": now - 0.1}), SimpleNamespace(inputs={}, **vars(scored))
    used = lab["old_as_trl_uses"](kept, None)
    assert lab["require_clip_can_act"](None, used) == pytest.approx(0.105, abs=1e-3)
    trips(lab["require_clip_can_act"], None, lab["old_as_trl_uses"](lost, None), match="every ratio is 1")


@pytest.mark.diagnoses("cell-038", "require_gradient_of_the_kl")
def test_an_estimator_with_another_gradient_is_noticed(lab):
    torch.manual_seed(0)
    lab["z"], lab["log_q"] = torch.randn(5, 9).double(), torch.randn(5, 9).double().log_softmax(-1)
    z, log_q, k3 = lab["z"], lab["log_q"], lab["k3"]
    sampled = z.softmax(-1)
    lab["slopes"] = {
        "exact KL": lab["by_logits"](lambda log_p: (log_p.exp() * (log_p - log_q)).sum(-1)),
        "k3": lab["by_logits"](lambda log_p: (sampled * k3(log_p)).sum(-1)),
        "k3 x ratio": lab["by_logits"](lambda log_p: (sampled * k3(log_p) * (log_p - z.log_softmax(-1)).exp()).sum(-1)),
    }
    lab["require_gradient_of_the_kl"]("k3 x ratio")
    trips(lab["require_gradient_of_the_kl"], "k3")
    # In value the two are the KL.
    assert (sampled * k3(z.log_softmax(-1))).sum() == pytest.approx(
        float((sampled * (z.log_softmax(-1) - log_q)).sum())
    )


@pytest.mark.diagnoses("cell-042", "require_continues")
def test_a_resume_that_samples_other_answers_or_ends_elsewhere_is_noticed(lab):
    rows = [[{"update": 4}] * 16]
    same = {"same_answers": True, "apart": 0.0, "stop": 4, "expected": rows, "rest": SimpleNamespace(rollouts=rows)}
    lab["require_continues"](SimpleNamespace(**same))
    other = same | {"same_answers": False, "rest": SimpleNamespace(rollouts=rows * 2)}
    trips(lab["require_continues"], SimpleNamespace(**other), match="16 more than without a stop")
    trips(lab["require_continues"], SimpleNamespace(**same | {"apart": 1e-8}), match="apart")


@pytest.mark.diagnoses("cell-046", "require_whole_groups")
def test_answers_dealt_out_one_by_one_are_noticed():
    whole = [[{"problem": name} for name in "aaaabbbb"]]
    require_whole_groups(whole, 4)
    trips(require_whole_groups, [rows[::2] + rows[1::2] for rows in whole], 4, match="several problems")


@pytest.mark.diagnoses("cell-057", "require_room")
def test_a_plan_without_room_for_the_states_is_noticed(lab):
    lab["require_room"](sum(state_bytes(SHAPES[0], IN_FP32).values()), SHAPES[0])
    trips(lab["require_room"], 8 * GB, SHAPES[0], match="states alone are 9.9 GB")


def test_diagnose_is_not_silent_about_what_gets_through(lab, capsys):
    def refuses(_):
        raise AssertionError("seen")

    lab["diagnose"](refuses, 1)
    assert capsys.readouterr().out == "caught, AssertionError: seen\n"
    with pytest.raises(AssertionError, match="let the error through"):
        lab["diagnose"](lambda _: None, 1)
