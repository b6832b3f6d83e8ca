"""Every error to diagnose of lab 04 trips its invariant, and the right thing does not.

Checks and plain code are the notebook's own definitions; the roles are very small random ones.
"""

import copy
import sys
from dataclasses import replace

import pytest
import torch
from notebook_definitions import notebook_definitions

from labs_lib.config import Lora
from labs_lib.errors import AuditError, LearningScopeError, VerificationError
from labs_lib.kernels.gae import last_active
from labs_lib.kernels.preference import bradley_terry_loss
from labs_lib.models.lora import LoraLinear, adapters
from labs_lib.models.roles import Scalar, learned_fingerprint, require_separate
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.scoring import answer_scores
from labs_lib.seeding import named_generator
from labs_lib.tasks.learning_scope import office_help_scope
from labs_lib.tasks.office_help.audit import audit_corpus, refuse_differences
from labs_lib.tasks.office_help.corpus import biased_pairs, load_corpus, load_pairs, load_probes
from labs_lib.tasks.office_help.wording import ACTIONS
from labs_lib.training.preferences import pair_scores, score_pairs
from labs_lib.training.supervised import pad_targets

sys.path.insert(0, str(ROOT / "tests" / "core"))  # the small roles
from small_office import EOS_ID, PAD_ID, fill_adapters, preferences, small_actor, small_judge

PROMPT = [5, 9, 3, 11]
ANSWERS = [[4, 6, EOS_ID], [4, PAD_ID, 8, 7, EOS_ID], [9, 6, 9, 7, 10, 12, EOS_ID]]


@pytest.fixture
def lab():
    """The notebook's imports and functions, with the names that they read."""
    names = notebook_definitions(NOTEBOOKS / "04_sft_and_reward_model.ipynb")
    names |= {"pad": PAD_ID, "judge": small_judge(50, learned=True), "examples": preferences(count=5)}
    names |= {"weight": torch.eye(2), "x": torch.tensor([[1.0, 2.0]])}
    return names


# --- 1: the corpus -----------------------------------------------------------------------------------


@pytest.mark.diagnoses("cell-009", "refuse_differences")
def test_a_corpus_with_its_courtesies_on_one_side_is_refused():
    corpus = load_corpus()
    refuse_differences(audit_corpus(corpus))
    polished = replace(corpus, pairs=biased_pairs(corpus.pairs, "courtesy"))
    with pytest.raises(AuditError, match="courteous chosen answers"):
        refuse_differences(audit_corpus(polished))


# --- 3: LoRA -----------------------------------------------------------------------------------------

A, B = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0], [0.0]])


def test_the_plain_branch_is_the_librarys(lab):
    draws = named_generator(1, "test/lab04")
    layer = LoraLinear(torch.nn.Linear(6, 5, bias=False), Lora(3, 7.5), draws)
    layer.B.data.normal_(generator=draws)
    x = torch.randn(4, 6, generator=draws)
    found = lab["lora"](x, layer.base.weight, layer.A, layer.B, 7.5)
    assert torch.allclose(found, layer(x), atol=1e-5)
    assert not torch.allclose(found, layer.base(x), atol=0.1)


@pytest.mark.diagnoses("cell-020", "require_learnable")
def test_a_start_with_b_alone_at_zero_is_the_only_one_that_passes(lab):
    lab["require_learnable"](A, 0 * B)
    with pytest.raises(AssertionError, match="nothing will ever be learned"):
        lab["require_learnable"](0 * A, 0 * B)
    with pytest.raises(AssertionError, match="does not start as the base"):
        lab["require_learnable"](A, B)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_that_changes_its_layer_is_named(lab, dtype):
    model = small_actor(49, dtype)
    assert lab["changed_layers"](model, PROMPT) == []
    name = list(adapters(model))[3]
    adapters(model)[name].B.data[0, 0] = 1.0
    assert lab["changed_layers"](model, PROMPT) == [name]


# --- 4: two roles ------------------------------------------------------------------------------------


def test_training_the_judge_moves_a_role_on_its_backbone_and_no_other(lab):
    judge = lab["judge"]
    others = {False: small_judge(51, learned=True), True: Scalar(judge.backbone, named_generator(51, "office/head"))}
    before = {shared: score_pairs(other, lab["examples"], PAD_ID) for shared, other in others.items()}
    lab["raise_chosen"](judge)
    for shared, other in others.items():
        assert torch.equal(score_pairs(other, lab["examples"], PAD_ID), before[shared]) is not shared


@pytest.mark.diagnoses("cell-032", "require_separate")
def test_roles_on_one_backbone_are_refused(lab):
    require_separate({"judge": lab["judge"], "critic": small_judge(51)})
    with pytest.raises(VerificationError, match="judge and critic share"):
        require_separate({"judge": lab["judge"], "critic": Scalar(lab["judge"].backbone)})


# --- 6 and 7: the judge and the token that it reads --------------------------------------------------


def test_the_plain_judge_and_loss_are_the_librarys(lab):
    judge, pairs = lab["judge"], lab["examples"]
    plain = torch.stack([lab["judge_one"](judge, p.prompt, a) for p in pairs for a in (p.chosen, p.rejected)]).view(
        -1, 2
    )
    assert torch.allclose(plain, pair_scores(judge, pairs, PAD_ID), atol=1e-4)
    assert plain.std() > 0.01
    loss = bradley_terry_loss(*plain.T).mean()
    assert lab["plain_preference_loss"](*plain.T).item() == pytest.approx(loss.item(), abs=1e-5)


def test_the_right_token_is_found_by_position(lab):
    ids, mask = pad_targets(ANSWERS, PAD_ID)
    lab["require_last_token"](lab["by_position"], ids, mask)
    lab["require_last_token"](lambda ids, mask: last_active(mask), ids, mask)


@pytest.mark.diagnoses("cell-056", "require_last_token")
def test_the_last_index_of_a_padded_batch_is_noticed(lab):
    with pytest.raises(AssertionError, match="2 of 3 answers are read at another token"):
        lab["require_last_token"](lab["last_index"], *pad_targets(ANSWERS, PAD_ID))


def test_the_last_index_depends_on_the_company(lab):
    alone, beside = pad_targets(ANSWERS[:1], PAD_ID), pad_targets(ANSWERS, PAD_ID)
    scores = {
        name: [lab["read_at"](lab[name], [PROMPT], *batch)[0].item() for batch in (alone, beside)]
        for name in ("by_position", "last_index")
    }
    assert scores["by_position"][0] == pytest.approx(scores["by_position"][1], abs=1e-5)
    assert abs(scores["last_index"][0] - scores["last_index"][1]) > 1e-3


@pytest.mark.diagnoses("cell-056", "require_last_token")
def test_the_last_id_that_is_not_pad_passes_until_an_answer_ends_with_it(lab):
    place = lab["last_other_than"](PAD_ID)
    lab["require_last_token"](place, *pad_targets(ANSWERS, PAD_ID))  # a PAD inside is not yet enough
    cut = [[4, 6, PAD_ID, PAD_ID], [4, 6, 8, 7]]
    with pytest.raises(AssertionError, match="1 of 2"):
        lab["require_last_token"](place, *pad_targets(cut, PAD_ID))


@pytest.mark.diagnoses("cell-056", "require_last_token")
def test_the_last_id_that_is_not_eos_loses_every_eos_of_rows_filled_with_it(lab):
    ids, mask = pad_targets(ANSWERS, EOS_ID)
    lab["require_last_token"](lab["by_position"], ids, mask)
    with pytest.raises(AssertionError, match="3 of 3"):
        lab["require_last_token"](lab["last_other_than"](EOS_ID), ids, mask)


def test_ids_behind_the_end_change_no_bit_of_a_score_and_would_at_the_last_index(lab):
    ids, mask = pad_targets(ANSWERS, PAD_ID)
    other = torch.where(mask, ids, 6)
    with torch.no_grad():
        found = [answer_scores(lab["judge"], [PROMPT], version, mask, PAD_ID) for version in (ids, other)]
    assert torch.equal(*found)
    wrong = [lab["read_at"](lab["last_index"], [PROMPT], version, mask) for version in (ids, other)]
    assert not torch.equal(*wrong)


# --- 8: accuracy, quality, reliability ---------------------------------------------------------------


@pytest.mark.diagnoses("cell-068", "require_counts_answers")
def test_an_accuracy_quoted_as_quality_is_noticed(lab):
    answers = [{"success": number < 118} for number in range(180)]
    lab["require_counts_answers"]({"count": 118, "n": 180}, answers)
    for claim in ({"count": 153, "n": 180}, {"count": 118, "n": 170}):
        with pytest.raises(AssertionError, match="does not count the actor's answers"):
            lab["require_counts_answers"](claim, answers)


def test_reliability_counts_every_pair_once_in_the_bin_of_its_confidence(lab):
    margins = [0.0, 0.1, -0.1, 2.0, -2.0, 2.0, 2.0, 60.0, -60.0]
    bins = lab["reliability"]([{"chosen": m, "rejected": 0.0} for m in margins], (0.5, 0.8, 0.95, 1.0))
    assert [entry["n"] for entry in bins] == [3, 4, 2]
    assert [entry["value"] for entry in bins] == pytest.approx([1 / 3, 3 / 4, 1 / 2])
    assert bins[1]["predicted"] == pytest.approx(torch.tensor(2.0).sigmoid().item())
    assert all(entry["low"] < entry["value"] < entry["high"] for entry in bins)


# --- 9: what the judge learned -----------------------------------------------------------------------


def test_style_alone_is_right_on_four_of_five_test_pairs(lab):
    rule, tests = lab["style_rule"](load_pairs("train")), load_pairs("test")
    assert lab["rule_accuracy"](rule, tests) == pytest.approx(0.8)
    by_kind = {kind: [pair for pair in tests if pair.kind == kind] for kind in {pair.kind for pair in tests}}
    rates = sorted(lab["rule_accuracy"](rule, pairs) for pairs in by_kind.values())
    assert rates == pytest.approx([0.5, 0.5, 1.0, 1.0, 1.0])


def test_style_alone_is_always_right_where_courtesy_gives_the_answer_away(lab):
    train, tests = (biased_pairs(load_pairs(split), "courtesy") for split in ("train", "test"))
    assert lab["rule_accuracy"](lab["style_rule"](train), tests) == 1.0


def test_the_other_action_is_always_another(lab):
    assert sorted(map(lab["other_action"], ACTIONS)) == sorted(ACTIONS)
    assert all(lab["other_action"](action) != action for action in ACTIONS)


@pytest.mark.diagnoses("cell-097", "office_help_scope")
def test_probes_cannot_be_opened_while_learning():
    for allowed in (True, False):
        with office_help_scope(validation_pairs=allowed), pytest.raises(LearningScopeError, match="probes"):
            load_probes()
    assert len(load_probes()) == 80


@pytest.mark.diagnoses("cell-097", "require_announced")
def test_a_judge_that_learned_after_its_announcement_is_noticed(lab):
    judge = lab["judge"]
    announced = learned_fingerprint(judge)
    lab["require_announced"](judge, announced)
    lab["require_announced"](copy.deepcopy(judge), announced)
    tuned = copy.deepcopy(judge)
    lab["raise_chosen"](tuned)
    another = small_judge(50)
    fill_adapters(another, seed=3)
    for changed in (tuned, another):
        with pytest.raises(AssertionError, match="not the weights"):
            lab["require_announced"](changed, announced)
