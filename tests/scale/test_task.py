"""StockArithmetic for TRL: the same prompts as ids, the same verdicts, and held-out files stay closed."""

from types import SimpleNamespace

import pytest

from labs_lib.branches import prompt_ids
from labs_lib.config import load_profile
from labs_lib.errors import LearningScopeError
from labs_lib.models.base import base_tokenizer
from labs_lib.models.chat import encode_target
from labs_lib.models.locations import WEIGHTS, base_location
from labs_lib.paths import ROOT
from labs_lib.rollout import EOS, LENGTH
from labs_lib.scale import task
from labs_lib.scale.task import VerifierReward, dataset_row, judge_ids, training_examples
from labs_lib.tasks.learning_scope import stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic.gallery import RIGHT, WORKED_ANSWERS, WORKED_PROBLEM, WORKED_REWARDS
from labs_lib.tasks.stock_arithmetic.verifier import verify

PROFILE = load_profile("tiny")
STATE = SimpleNamespace(global_step=0)
EOS_TEXT, START_TEXT = "<|im_end|>", "<|im_start|>"


@pytest.fixture(scope="module")
def tokenizer():
    return base_tokenizer(PROFILE.base, ROOT / base_location(PROFILE))


def ids_of(tokenizer, text, end=True):
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], *[tokenizer.eos_token_id] * end]


def paid(reward, tokenizer, *texts, end=True):
    ids = [ids_of(tokenizer, text, end) for text in texts]
    problems = [WORKED_PROBLEM.as_dict()] * len(texts)
    return reward(completion_ids=ids, name=["w"] * len(texts), problem=problems, trainer_state=STATE)


# --- The reward ----------------------------------------------------------------------------------------


def test_the_worked_answers_are_paid_as_in_lab_01(tokenizer):
    assert paid(VerifierReward(tokenizer), tokenizer, *WORKED_ANSWERS) == list(map(float, WORKED_REWARDS))


def test_an_answer_that_did_not_end_and_a_special_token_inside_earn_nothing(tokenizer):
    reward = VerifierReward(tokenizer)
    assert paid(reward, tokenizer, RIGHT, end=False) == [0.0]
    assert paid(reward, tokenizer, RIGHT + START_TEXT, START_TEXT + RIGHT) == [0.0, 0.0]
    assert reward(completion_ids=[[]], name=["w"], problem=[WORKED_PROBLEM.as_dict()], trainer_state=STATE) == [0.0]


def test_a_reward_that_reads_trls_text_pays_for_both(tokenizer):
    """The mutant: what TRL passes as text has lost what the verifier looks at."""
    for ids in (ids_of(tokenizer, RIGHT, end=False), ids_of(tokenizer, RIGHT + START_TEXT)):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert verify(text, EOS, WORKED_PROBLEM, True).reward == 1
        assert judge_ids(tokenizer, ids, WORKED_PROBLEM).reward == 0


def test_verdicts_are_those_of_the_labs_rollouts(tokenizer):
    for text, end in ((RIGHT, True), (RIGHT, False), ("27", True), ('{"final_stock":29}', True)):
        ids = ids_of(tokenizer, text, end)
        expected = verify(text, EOS if end else LENGTH, WORKED_PROBLEM, True)
        assert judge_ids(tokenizer, ids, WORKED_PROBLEM) == expected
    assert judge_ids(tokenizer, [len(tokenizer), tokenizer.eos_token_id], WORKED_PROBLEM).reason == "unknown_id"


def test_what_was_sampled_is_recorded_with_its_update(tokenizer):
    kept = []
    ids = [ids_of(tokenizer, text) for text in WORKED_ANSWERS]
    VerifierReward(tokenizer, kept.append)(
        completion_ids=ids,
        name=list("abcd"),
        problem=[WORKED_PROBLEM.as_dict()] * 4,
        trainer_state=SimpleNamespace(global_step=6),
    )
    assert [(row["update"], row["problem"], row["ids"], row["reward"]) for row in kept[0]] == [
        (6, name, answer, reward) for name, answer, reward in zip("abcd", ids, WORKED_REWARDS, strict=True)
    ]


# --- The dataset ---------------------------------------------------------------------------------------


@pytest.mark.engine
def test_the_dataset_has_the_problems_of_lab_03s_grpo_and_nothing_that_gives_them_away():
    rows = task.training_dataset()
    examples = training_examples()
    assert len(rows) == len(examples) == 872 and set(rows.column_names) == {"prompt", "name", "problem"}
    assert [row["name"] for row in rows] == [example.id for example in examples]
    for row, example in zip(rows, examples, strict=True):
        assert row["problem"] == example.problem.as_dict()
        assert row["prompt"] == task.messages(example.statement)
        assert example.target not in str(row["prompt"])


@pytest.mark.engine
def test_while_learning_the_dataset_opens_and_held_out_files_do_not():
    from labs_lib.tasks.stock_arithmetic.corpus import load_split

    with stock_arithmetic_scope():
        assert len(task.training_dataset()) == 872
        for split in ("validation", "test"):
            with pytest.raises(LearningScopeError):
                load_split(split, labels=False)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["tiny", "smollm2-135m", "qwen2.5-0.5b"])
def test_trls_prompt_ids_are_ours(name):
    """TRL's own method on its own kind of rows; only its construction is left out."""
    from trl import GRPOTrainer

    profile = load_profile(name)
    folder = ROOT / base_location(profile)
    if not (folder / WEIGHTS).exists():
        pytest.skip(f"needs the base of {name}: make model PROFILE={name}")
    tokenizer = base_tokenizer(profile.base, folder)
    trainer = SimpleNamespace(
        processing_class=tokenizer,
        _is_vlm=False,
        environment_factories=None,
        tools=None,
        chat_template=None,
        chat_template_kwargs={},
    )
    examples = training_examples()
    theirs = GRPOTrainer._tokenize_prompts(trainer, [task.messages(e.statement) for e in examples])[0]
    ours = [prompt_ids(profile, tokenizer, example) for example in examples]
    assert [list(ids) for ids in theirs] == ours
    swapped = task.messages(examples[0].statement)[::-1]
    assert list(GRPOTrainer._tokenize_prompts(trainer, [swapped])[0][0]) != ours[0]


def test_a_row_is_what_the_reward_takes(tokenizer):
    row = dataset_row("worked", "How many?", WORKED_PROBLEM)
    ids = encode_target(tokenizer, RIGHT, [1], PROFILE.budget, "worked")
    reward = VerifierReward(tokenizer)
    assert reward(completion_ids=[ids], name=[row["name"]], problem=[row["problem"]], trainer_state=STATE) == [1.0]
