"""OfficeHelp's branches: what each starts from, trained under the learning scope, refused when anything was swapped."""

import ast
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_model import PROFILE, small_model, tokenizer
from small_office import PAD_ID

from labs_lib import branch_runs, branches, office_branches
from labs_lib.branch_runs import COMMON_CODE, branch_folder, branch_seconds, weights_file
from labs_lib.config import Budget
from labs_lib.errors import EvidenceExistsError, IdentityError, LabError, LearningScopeError, VerificationError
from labs_lib.models import roles
from labs_lib.models.base import LoadedBase
from labs_lib.models.lora import adapters
from labs_lib.models.roles import backbone_fingerprint, learned_fingerprint, learned_tensors, require_separate
from labs_lib.office_branches import (
    BASE,
    RUBRIC,
    SFT,
    RoleSource,
    ensure_office,
    fresh_actor,
    fresh_judge,
    judge_branch,
    office_protocol,
    ppo_branch,
    role_source,
    train_office,
    training_pairs,
)
from labs_lib.paths import OUTPUTS_VARIABLE, ROOT, outputs_root
from labs_lib.tasks.office_help import corpus
from labs_lib.tasks.office_help.corpus import DATA_FOLDER, load_pairs, load_probes, load_rollout_requests
from labs_lib.training.ppo import PpoTrainer
from labs_lib.training.preferences import DpoTrainer, JudgeTrainer
from labs_lib.training.run import CONTINUOUS, INTERRUPTED, MODES, RESUMED
from labs_lib.training.supervised import SupervisedTrainer

FEW = 8
EPOCHS = {"examples": FEW, "batch_size": 4, "micro_batch_size": 4, "epochs": 2, "learning_rate": 1e-2}
OFFICE = PROFILE.office
SMALL = replace(
    PROFILE,
    budget=Budget(prompt_tokens=256, answer_tokens=40, total_tokens=296),
    office=replace(
        OFFICE,
        sft=replace(OFFICE.sft, **EPOCHS),
        judge=replace(OFFICE.judge, **EPOCHS),
        dpo=replace(OFFICE.dpo, **EPOCHS),
        ppo=replace(OFFICE.ppo, iterations=2, prompts_per_iteration=2, interrupt_at=1, checkpoint_every=1),
    ),
)
TRAINED = (SFT, "judge", "ppo", "ppo-rubric", "dpo")


def small_base(profile, weak=False):
    return LoadedBase(small_model().to(getattr(torch, profile.dtype)), tokenizer(), "0" * 64)


def few_pairs(split):
    return load_pairs(split)[:FEW]


def patch_small(patch) -> None:
    """The small base, and some of the corpus; all else is real."""
    patch.setattr(roles, "load_base", small_base)
    patch.setattr(office_branches, "load_pairs", few_pairs)
    patch.setattr(office_branches, "load_rollout_requests", lambda: load_rollout_requests()[:6])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(outputs folder, some trained branches by name), made once for this module."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder))
        patch_small(patch)
        made = {name: ensure_office(SMALL, name) for name in TRAINED}
    return folder, made


@pytest.fixture
def outputs(trained, tmp_path, monkeypatch):
    """A copy of the trained outputs, which a test may damage."""
    folder = Path(shutil.copytree(trained[0], tmp_path / "outputs"))
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(folder))
    patch_small(monkeypatch)
    return folder


# --- The protocol --------------------------------------------------------------------------------------------


def test_the_protocol_has_the_branches_of_both_labs():
    made = office_protocol(PROFILE)
    biases = {"judge": None, "judge-courtesy": "courtesy", "judge-confidence": "confidence"}
    paid = {"ppo": "judge", "ppo-courtesy": "judge-courtesy", "ppo-confidence": "judge-confidence"}
    paid["ppo-rubric"] = RUBRIC
    assert set(made) == {SFT, *biases, *paid, "dpo"}
    assert {name: made[name].bias for name in biases} == biases
    assert {name: made[name].reward for name in paid} == paid
    assert {branch.kl_weight for name, branch in made.items() if name in paid} == {0.02}
    assert all(branch.name == name and branch.seed == PROFILE.seed for name, branch in made.items())


def test_three_branches_have_three_resumable_states_each():
    three_ways = [name for name, branch in office_protocol(PROFILE).items() if branch.three_ways]
    assert three_ways == [SFT, "judge", "ppo"]


def test_every_start_and_every_judge_comes_before_its_users():
    known = {BASE, RUBRIC}
    for name, branch in office_protocol(PROFILE).items():
        assert {branch.start, branch.reward or BASE} <= known
        assert branch.start == (SFT if branch.kind in ("ppo", "dpo") else BASE)
        known.add(name)


def test_an_unknown_branch_is_refused_with_the_list(outputs):
    with pytest.raises(LabError, match="'ppo-kl'.*sft-office, judge, ppo, judge-courtesy"):
        ensure_office(SMALL, "ppo-kl")


def test_a_biased_judge_learns_from_copies_of_the_same_pairs():
    plain = training_pairs(PROFILE, None)
    assert len(plain) == 840 and plain == load_pairs("train")
    changed = {bias: training_pairs(PROFILE, bias) for bias in ("courtesy", "confidence")}
    assert plain == load_pairs("train")
    for bias, share in (("courtesy", 1.0), ("confidence", PROFILE.office.confidence_share)):
        assert [pair.request.prompt for pair in changed[bias]] == [pair.request.prompt for pair in plain]
        renamed = sum(pair.request.id.endswith(f"+{bias}") for pair in changed[bias])
        assert renamed == round(840 * share)
    few = replace(PROFILE, office=replace(PROFILE.office, confidence_share=0.1))
    assert sum("+" in pair.request.id for pair in training_pairs(few, "confidence")) == 84


def test_pairs_are_encoded_with_their_prompt_and_end_with_eos():
    pairs = load_pairs("train")[:3]
    for pair, example in zip(pairs, office_branches.preference_examples(PROFILE, tokenizer(), pairs), strict=True):
        assert example.name == pair.request.id and PAD_ID not in example.chosen + example.rejected
        for answer, ids in ((pair.chosen, example.chosen), (pair.rejected, example.rejected)):
            assert ids[-1] == tokenizer().eos_token_id and tokenizer().decode(ids[:-1]) == answer
        assert pair.request.prompt in tokenizer().decode(example.prompt)


# --- Three modes, one result ---------------------------------------------------------------------------------


def reload(name):
    source = role_source(SMALL, name)
    return source.judge() if name.startswith("judge") else source.actor().model


@pytest.mark.parametrize("name", TRAINED)
def test_a_branch_ends_alike_in_every_mode_and_reloads_equal(trained, outputs, name):
    branch = trained[1][name]
    if office_protocol(SMALL)[name].three_ways:
        assert set(branch.ends) == set(MODES)
        assert branch.state_sha256[CONTINUOUS] == branch.state_sha256[RESUMED] != branch.ends[INTERRUPTED].state_sha256
    else:
        assert set(branch.ends) == {CONTINUOUS}
    loaded = reload(name)
    assert learned_fingerprint(loaded) == branch.fingerprint
    role = {"sft-office": "policy", "judge": "judge", "dpo": "policy"}.get(name, "actor")
    final = branch.final.tensors
    assert all(torch.equal(final[f"{role}.{key}"], tensor) for key, tensor in learned_tensors(loaded).items())


def test_branches_start_where_they_say(trained):
    made = trained[1]
    identities = {name: branch.final.manifest["identity"] for name, branch in made.items()}
    assert {name: identity["start"] for name, identity in identities.items()} == {
        SFT: "None",
        "judge": "None",
        **dict.fromkeys(("ppo", "ppo-rubric", "dpo"), made[SFT].fingerprint),
    }
    assert {name: identity["reward"] for name, identity in identities.items()} == {
        **dict.fromkeys((SFT, "judge", "dpo", "ppo-rubric"), "None"),
        "ppo": made["judge"].fingerprint,
    }
    backbone = backbone_fingerprint(small_model().to(torch.bfloat16))
    assert {identity["backbone"] for identity in identities.values()} == {backbone}
    assert len({branch.fingerprint for branch in made.values()}) == len(made)


def test_seeds_are_49_for_the_actor_and_50_for_the_judge(outputs):
    def first(model):
        return next(iter(adapters(model).values())).A

    actor, (judge, _) = fresh_actor(SMALL, 48).model, fresh_judge(SMALL, 48)
    expected = {seed: torch.rand(first(actor).shape, generator=generator(seed)) for seed in (49, 50)}
    bound = 1 / math.sqrt(first(actor).shape[1])
    for model, seed in ((actor, 49), (judge, 50)):
        torch.testing.assert_close(first(model), expected[seed] * 2 * bound - bound)
    assert all((adapter.B == 0).all() for model in (actor, judge) for adapter in adapters(model).values())


def generator(seed):
    return office_branches.named_generator(seed, "office/adapters")


def test_ppos_four_roles_start_as_the_lab_says_and_share_nothing(trained, outputs):
    sft, judge = role_source(SMALL, SFT), role_source(SMALL, "judge")
    made = {"actor": sft.actor().model, "reference": sft.actor().model, "critic": sft.critic(), "judge": judge.judge()}
    require_separate(made)
    for name in ("actor", "reference"):
        assert learned_fingerprint(made[name]) == trained[1][SFT].fingerprint
    assert learned_fingerprint(made["critic"].backbone) == trained[1][SFT].fingerprint
    assert (made["critic"].head.weight == 0).all() and (made["critic"].head.bias == 0).all()
    assert learned_fingerprint(made["judge"]) == trained[1]["judge"].fingerprint
    assert {backbone_fingerprint(model) for model in made.values()} == {backbone_fingerprint(made["actor"])}
    state = trained[1]["ppo"].final.tensors
    for role in ("reference", "judge"):
        assert all(torch.equal(state[f"{role}.{name}"], t) for name, t in learned_tensors(made[role]).items())


def test_ppo_starts_at_its_reference_and_the_critic_at_zero(trained):
    first = trained[1]["ppo"].final.record["history"][0]
    assert abs(first["kl_mean"]) < 1e-6
    assert {value for answer in first["answers"] for value in answer["values"]} == {0.0}


def test_dpo_starts_at_its_reference(trained):
    assert trained[1]["dpo"].final.record["history"][0]["loss"] == pytest.approx(math.log(2), abs=1e-3)


def test_another_reward_sees_the_same_first_answers(trained):
    first, other = (trained[1][name].final.record["history"][0]["answers"] for name in ("ppo", "ppo-rubric"))
    assert [(a["prompt"], a["ids"]) for a in first] == [(a["prompt"], a["ids"]) for a in other]
    assert [a["score"] for a in first] != [a["score"] for a in other]
    assert {a["score"] for a in other} <= {0.0, 1.0}


def test_only_training_families_serve_and_every_population_its_own_branch(trained):
    def met(name, key):
        history = trained[1][name].final.record["history"]
        return {example for row in history for example in row[key]}

    demonstrations, pairs = met(SFT, "examples"), met("judge", "examples")
    prompts = {a["prompt"] for row in trained[1]["ppo"].final.record["history"] for a in row["answers"]}
    assert len(demonstrations) == len(pairs) == FEW and met("dpo", "examples") == pairs
    assert not demonstrations & pairs and not prompts & (demonstrations | pairs)
    assert pairs <= {pair.request.id for pair in load_pairs("train")}
    assert prompts <= {request.id for request in load_rollout_requests()}


def test_what_is_trained_is_found_not_made_again(trained, outputs, monkeypatch):
    def never(*arguments):
        raise AssertionError("a trainer was made")

    for trainer in ("SupervisedTrainer", "JudgeTrainer", "DpoTrainer", "PpoTrainer"):
        monkeypatch.setattr(office_branches, trainer, never)
    assert ensure_office(SMALL, "ppo").fingerprint == trained[1]["ppo"].fingerprint
    with pytest.raises(AssertionError):
        ensure_office(SMALL, "ppo", fresh=True)
    assert role_source(SMALL, "judge").judge()  # fresh threw away one branch only
    assert not list(branch_folder(SMALL, "ppo").glob("*/step-*"))


def test_seconds_are_kept_by_phase(trained):
    for name, branch in trained[1].items():
        seconds = branch_seconds(branch.final)
        assert seconds["total"] == pytest.approx(sum(value for key, value in seconds.items() if key != "total"))
        assert (seconds["generation"] > 0) == name.startswith("ppo")


def test_more_examples_than_there_are_is_refused(outputs):
    settings = replace(SMALL.office.judge, examples=FEW + 1)
    profile = replace(SMALL, office=replace(SMALL.office, judge=settings))
    with pytest.raises(LabError, match="judge needs 9 examples and got 8"):
        ensure_office(profile, "judge", fresh=True)


def test_one_seed_of_a_study_is_a_branch_of_its_own(trained, outputs):
    source = role_source(SMALL, "judge")
    other = train_office(SMALL, ppo_branch("judge", 0.02, 50, "ppo-seed-50"), source)
    first, others = (b.final.record["history"][0]["answers"] for b in (trained[1]["ppo"], other))
    assert [a["ids"] for a in first] != [a["ids"] for a in others]
    assert set(other.ends) == {CONTINUOUS}
    identity = other.final.manifest["identity"]
    assert identity["start"] == trained[1][SFT].fingerprint and identity["reward"] == source.fingerprint


# --- What learning may see -----------------------------------------------------------------------------------


class FileWasRead(Exception):
    """Nothing stopped the trainer from reading."""


def reading(trainer_class, path):
    """A trainer that opens `path` in its first step."""

    class Curious(trainer_class):
        def advance(self):
            Path(path).read_bytes()
            raise FileWasRead

    return Curious


def files_of(*populations):
    return [DATA_FOLDER / f"{population}.{part}.jsonl" for population in populations for part in ("visible", "labels")]


HELD_OUT, VALIDATION = files_of("test.pairs", "probes"), files_of("validation.pairs")
TRAINERS = {SFT: SupervisedTrainer, "judge": JudgeTrainer, "dpo": DpoTrainer, "ppo": PpoTrainer}


def train_curious(monkeypatch, name, path):
    trainer_class = TRAINERS[name]
    monkeypatch.setattr(office_branches, trainer_class.__name__, reading(trainer_class, path))
    ensure_office(SMALL, name, fresh=True)


@pytest.mark.parametrize(
    "name, path",
    [(name, path) for name in TRAINERS for path in HELD_OUT] + [("ppo", path) for path in VALIDATION],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_step_that_opens_a_held_out_file_is_refused_by_name(outputs, monkeypatch, name, path):
    with pytest.raises(LearningScopeError, match=path.name.replace(".", r"\.")):
        train_curious(monkeypatch, name, path)
    assert path.read_bytes()  # after the training it may be opened


@pytest.mark.parametrize("name", [SFT, "judge", "dpo"])
def test_epochs_may_read_validation_for_their_figure(trained, outputs, monkeypatch, name):
    key = "validation_nll" if name == SFT else "validation"
    assert len(trained[1][name].final.record[key]) == EPOCHS["epochs"]
    with pytest.raises(FileWasRead):
        train_curious(monkeypatch, name, VALIDATION[0])


@pytest.mark.parametrize("name", TRAINERS)
def test_a_step_that_opens_an_evaluation_is_refused(outputs, monkeypatch, name):
    path = outputs_root(SMALL.name) / "evaluations" / "evaluation-ppo.json"
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(LearningScopeError, match=r"evaluation-ppo\.json"):
        train_curious(monkeypatch, name, path)


@pytest.mark.parametrize("more", [lambda: load_pairs("test"), load_probes], ids=["test pairs", "probes"])
def test_probes_or_test_pairs_cannot_be_added_to_the_training_pairs(outputs, monkeypatch, more):
    """The believable bug: after a bad result, the examples that showed it are learned too."""
    monkeypatch.setattr(office_branches, "training_pairs", lambda profile, bias: [*few_pairs("train"), *more()])
    with pytest.raises(LearningScopeError, match="held out while a policy is being trained"):
        ensure_office(SMALL, "judge", fresh=True)


def test_without_the_scope_a_curious_trainer_would_go_unnoticed(outputs, monkeypatch):
    monkeypatch.setattr(office_branches, "office_help_scope", lambda *arguments, **keywords: nullcontext())
    with pytest.raises(FileWasRead):
        train_curious(monkeypatch, "ppo", HELD_OUT[0])


# --- Swapped and changed -------------------------------------------------------------------------------------


def changed(**sections):
    return replace(SMALL, office=replace(SMALL.office, **sections))


@pytest.mark.parametrize(
    "profile, name, named",
    [
        (replace(SMALL, seed=49), "judge", r"branch\.seed \(saved 48, now 49\), config\.seed \(saved 48, now 49\)"),
        (
            changed(lora=replace(OFFICE.lora, alpha=32.0)),
            SFT,
            r"office\.lora\.alpha \(saved 16\.0, now 32\.0\)",
        ),
        (changed(judge=replace(SMALL.office.judge, learning_rate=2e-2)), "judge", r"office\.judge\.learning_rate"),
        (
            changed(dpo=replace(SMALL.office.dpo, beta=0.2)),
            "dpo",
            r"office\.dpo\.beta \(saved 0\.1, now 0\.2\)",
        ),
        (changed(ppo=replace(SMALL.office.ppo, gae_lambda=0.9)), "ppo", r"gae_lambda \(saved 0\.95, now 0\.9\)"),
        (changed(ppo=replace(SMALL.office.ppo, kl_weight=0.1)), "ppo", r"branch\.kl_weight \(saved 0\.02, now 0\.1\)"),
    ],
    ids=["seed", "lora", "judge", "beta", "lambda", "kl"],
)
def test_another_config_is_refused_naming_the_key(outputs, profile, name, named):
    with pytest.raises(IdentityError, match=named):
        ensure_office(profile, name)


@pytest.mark.parametrize(
    "profile",
    [
        replace(SMALL, grpo=replace(SMALL.grpo, kl_weight=0.5)),
        changed(study=replace(OFFICE.study, seeds=(1, 2))),
        changed(dpo=replace(SMALL.office.dpo, beta=0.2), confidence_share=0.25),
    ],
    ids=["grpo", "study", "dpo and the share of another judge"],
)
def test_a_setting_that_plays_no_part_refuses_nothing(trained, outputs, profile):
    assert ensure_office(profile, "ppo").fingerprint == trained[1]["ppo"].fingerprint


@pytest.mark.parametrize(
    "name, key", [("code_fingerprint", "code"), ("sha256_file", "data"), ("sha256_bytes", "tokenizer")]
)
def test_other_code_pairs_or_tokenizer_is_refused_naming_it(outputs, monkeypatch, name, key):
    monkeypatch.setattr(branch_runs, name, lambda *arguments: "e" * 64)
    with pytest.raises(IdentityError, match=rf"{key} \(saved"):
        ensure_office(SMALL, "judge")


def test_another_base_is_refused(outputs, monkeypatch):
    def other_base(profile, weak=False):
        return LoadedBase(small_model(seed=1).to(torch.bfloat16), tokenizer(), "0" * 64)

    monkeypatch.setattr(roles, "load_base", other_base)
    with pytest.raises(IdentityError, match=r"backbone \(saved"):
        ensure_office(SMALL, SFT)


def test_another_judge_is_refused(trained, outputs):
    """A judge of another seed under the same name of a branch: only its fingerprint differs."""
    other = train_office(SMALL, judge_branch(None, 49, "judge-49"))
    with pytest.raises(IdentityError, match=r"what differs: reward \(saved [0-9a-f…]+, now [0-9a-f…]+\)\."):
        train_office(SMALL, office_protocol(SMALL)["ppo"], RoleSource(SMALL, other))


def test_another_kl_weight_under_the_same_name_is_refused(outputs):
    branch = replace(office_protocol(SMALL)["ppo"], kl_weight=0.0)
    with pytest.raises(IdentityError, match=r"what differs: branch\.kl_weight \(saved 0\.02, now 0\.0\)\."):
        train_office(SMALL, branch)


def test_another_bias_or_reward_under_the_same_name_is_refused(outputs):
    with pytest.raises(IdentityError, match=r"branch\.bias \(saved None, now courtesy\)"):
        train_office(SMALL, replace(office_protocol(SMALL)["judge"], bias="courtesy"))
    with pytest.raises(IdentityError, match=r"branch\.reward \(saved judge, now rubric\)"):
        train_office(SMALL, replace(office_protocol(SMALL)["ppo"], reward=RUBRIC))


def test_swapped_weights_are_refused(trained, outputs):
    shutil.copy(weights_file(SMALL, "dpo"), weights_file(SMALL, SFT))
    with pytest.raises(VerificationError, match="not the role that its branch ended with"):
        RoleSource(SMALL, replace(trained[1][SFT], weights=weights_file(SMALL, SFT))).actor()
    with pytest.raises(EvidenceExistsError, match="sft-office"):
        ensure_office(SMALL, "ppo")


def test_missing_weights_are_written_again_from_the_state(trained, outputs):
    before = weights_file(SMALL, "judge").read_bytes()
    weights_file(SMALL, "judge").unlink()
    ensure_office(SMALL, "judge")
    assert weights_file(SMALL, "judge").read_bytes() == before


# --- What the code's fingerprint covers ----------------------------------------------------------------------

PACKAGE = ROOT / "labs_lib"
# Rooms whose code makes numbers; the rest stores, shows, or puts together what the identity names.
ROOMS = ("kernels/", "models/", "training/", "tasks/", "rollout.py", "scoring.py", "seeding.py", "office_rewards.py")
NOT_COVERED = {
    "models/locations.py": "says where a base lies; its bits are in the identity: as `start` and `backbone`",
    "models/fingerprint.py": "names what was made, and is compared itself: as `start`",
    "tasks/learning_scope.py": "forbids files and gives nothing to a run",
}
STOCK_READS = {"tasks/corpus_files.py": "there it reads files whose hashes the identity holds, and draws nothing"}
FAMILIES = {
    "stock": (
        ("branches.py", "training/grpo.py", "training/supervised.py"),
        branches.NUMERIC_CODE,
        NOT_COVERED | STOCK_READS,
    ),
    "office": (
        ("office_branches.py", "office_rewards.py", "training/ppo.py", "training/preferences.py"),
        office_branches.OFFICE_CODE,
        NOT_COVERED,
    ),
}


def imported_by(module: str) -> set[str]:
    """The modules of this library that one of them imports, as paths below the package."""
    names = set()
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {name.removeprefix("labs_lib.").replace(".", "/") + ".py" for name in names if name.startswith("labs_lib.")}
    return {path for path in paths if (PACKAGE / path).exists()}


def reached_from(roots) -> set[str]:
    reached, waiting = set(), [*roots]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += imported_by(module)
    return reached


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_that_can_change_a_number_is_in_the_codes_fingerprint(family):
    roots, own, exceptions = FAMILIES[family]
    covered, reached = {*COMMON_CODE, *own}, reached_from(roots)
    making_numbers = {module for module in reached if module.startswith(ROOMS)} - exceptions.keys()
    assert making_numbers - covered == set(), "add these to the family's list of fingerprinted modules"
    assert covered - making_numbers == set(), "these make no number of the family"
    assert exceptions.keys() <= reached and all((PACKAGE / module).exists() for module in covered)


def test_the_walk_finds_what_is_imported_from_a_package_and_by_other_names():
    found = imported_by("tasks/office_help/corpus.py")
    assert {"tasks/corpus_files.py", "tasks/office_help/construction.py", "paths.py"} <= found
    assert "kernels/kl.py" in reached_from(["training/ppo.py"])
    assert corpus.deck.__module__ == "labs_lib.tasks.office_help.construction"  # draws the variants of biased pairs
