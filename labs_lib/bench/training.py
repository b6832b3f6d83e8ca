"""All seeds and variants of a study in one training loop: every tensor's first dimension counts models.

Model m is variant m // seeds with seed m % seeds. Variants of one seed start from the same weights and meet the same
prompts, uniforms and permutations, so that they are compared in pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from labs_lib.bench.losses import Variant, advantages_of, answer_weights, bench_loss
from labs_lib.bench.policies import Mlp, Policies, Tabular, state_of, states_of, table_of, token_logprobs
from labs_lib.kernels.advantages import constant_groups
from labs_lib.seeding import named_generator
from labs_lib.tasks.padded_bits.environment import GOES_ON, MAX_TOKENS, P, S, answer_mask, rewards


@dataclass(frozen=True)
class Plan:
    """How long and with what a study trains.

    Attributes:
        policy: "mlp" or "tabular".
        optimizer: "adam" or "sgd".
        gradient_norm: every gradient is scaled to this norm; None: as it is.
        recompute_old: the trap: "old" log-probs are those of the policy just before each minibatch.
        reward: "rule"; controls: "random" (a coin an answer) and "shuffled keys" (the verifier is given the key of
            another prompt of the iteration).
        resample: rounds in which constant groups are replaced by fresh ones (DAPO's dynamic sampling); 0: never.
        invert_at: iteration from which every bit of the key counts turned; None: never.
    """

    policy: str = "mlp"
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    iterations: int = 100
    prompts: int = 16
    group_size: int = 8
    epochs: int = 4
    minibatch: int = 32
    bits: int = 1
    gradient_norm: float | None = None
    recompute_old: bool = False
    reward: str = "rule"
    resample: int = 0
    invert_at: int | None = None

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size


@dataclass
class Rollouts:
    """One batch of every model: keys (M, A), answers and log-probs (M, A, T), mask (M, A, T), rewards (M, P, G)."""

    keys: torch.Tensor
    answers: torch.Tensor
    logprobs: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor

    @property
    def stopped(self) -> torch.Tensor:
        """Which answers have a stop, (M, A) bool."""
        return ((self.answers == S) & self.mask).any(dim=-1)

    @property
    def lengths(self) -> torch.Tensor:
        """Tokens of each answer, (M, A)."""
        return self.mask.sum(dim=-1)


class Draws:
    """The random numbers of each seed, in the order in which one model alone would take them."""

    def __init__(self, seeds: Sequence[int], plan: Plan):
        self.plan = plan
        self.generators = [named_generator(seed, "bench/draws") for seed in seeds]

    def prompts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (seeds, P) int64 and uniforms (seeds, A, T) float64."""
        plan = self.plan
        drawn = [
            (
                torch.randint(2**plan.bits, (plan.prompts,), generator=generator),
                torch.rand(plan.answers, MAX_TOKENS, generator=generator, dtype=torch.float64),
            )
            for generator in self.generators
        ]
        keys, uniforms = zip(*drawn, strict=True)
        return torch.stack(keys), torch.stack(uniforms)

    def coins(self) -> torch.Tensor:
        """(seeds, P, G) float64, each 0 or 1."""
        shape = self.plan.prompts, self.plan.group_size
        return torch.stack([torch.randint(2, shape, generator=g) for g in self.generators]).double()

    def order(self) -> torch.Tensor:
        """A permutation of the answers for each seed, (seeds, A)."""
        return self._permutations(self.plan.answers)

    def prompt_order(self) -> torch.Tensor:
        """A permutation of the prompts for each seed, (seeds, P)."""
        return self._permutations(self.plan.prompts)

    def _permutations(self, number: int) -> torch.Tensor:
        return torch.stack([torch.randperm(number, generator=generator) for generator in self.generators])


@dataclass
class Record:
    """What is kept of every iteration, (M,) each by name; `updates` holds (epochs x minibatches) of each, (U, M)."""

    iterations: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    updates: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def add(self, part: dict[str, list[torch.Tensor]], values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            part.setdefault(name, []).append(value)


class BenchTrainer:
    """Variants x seeds, trained together; `record` grows by one row an iteration."""

    def __init__(self, variants: Mapping[str, Variant], seeds: Sequence[int], plan: Plan):
        self.variants, self.seeds, self.plan = dict(variants), list(seeds), plan
        repeated, keys = self.seeds * len(self.variants), 2**plan.bits
        self.policies: Policies = Mlp(repeated, keys) if plan.policy == "mlp" else Tabular(len(repeated), keys)
        kinds = {
            "adam": lambda parameters: torch.optim.Adam(parameters, plan.learning_rate, fused=True),
            "sgd": lambda parameters: torch.optim.SGD(parameters, plan.learning_rate),
        }
        self.optimizer = kinds[plan.optimizer](self.policies.parameters)
        self.draws = Draws(self.seeds, plan)
        self.record = Record()
        self.iteration = 0

    def run(self, observe: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]) -> Record:
        """Train to the end; `observe` sees the table of log-probabilities before each iteration and after the last."""
        while self.iteration < self.plan.iterations:
            table = table_of(self.policies)
            self.record.add(self.record.iterations, observe(table))
            self.advance(table)
        self.record.add(self.record.iterations, observe(table_of(self.policies)))
        return self.record

    def advance(self, table: torch.Tensor) -> None:
        """One iteration: sample, judge, and `epochs` passes over the answers in minibatches."""
        batch = self.sample(table)
        states = states_of(batch.answers, batch.keys)
        advantages = torch.cat(
            [advantages_of(part, v) for part, v in zip(self._parts(batch.rewards), self.variants.values(), strict=True)]
        ).flatten(1)
        for _ in range(self.plan.epochs):
            order = self._of_models(self.draws.order())
            for chosen in order.split(self.plan.minibatch, dim=1):
                self.update(batch, states, advantages, chosen)
        self.iteration += 1

    # --- Sampling -----------------------------------------------------------------------------------------------

    def sample(self, table: torch.Tensor) -> Rollouts:
        """Answers to every prompt with their log-probs as sampled: "old" from here on, captured once."""
        batch = self._fresh(table)
        sampled = torch.full((len(table),), float(self.plan.answers), dtype=table.dtype)
        for _ in range(self.plan.resample):
            lacking = constant(batch.rewards)  # also where none is: a seed's draws must not depend on the other models
            replace_groups(batch, self._fresh(table), lacking)
            sampled += lacking.any(dim=1) * self.plan.answers
        self.record.add(
            self.record.iterations,
            {"sampled": sampled, "constant_groups": constant(batch.rewards).double().mean(dim=1)},
        )
        return batch

    def _fresh(self, table: torch.Tensor) -> Rollouts:
        keys, uniforms = (self._of_models(drawn) for drawn in self.draws.prompts())
        asked = self._asked(keys).repeat_interleave(self.plan.group_size, dim=1)
        keys = keys.repeat_interleave(self.plan.group_size, dim=1)
        answers, logprobs = sample_answers(table, keys, uniforms)
        mask = answer_mask(answers)
        paid = rewards(answers, asked, self.plan.bits).view(-1, self.plan.prompts, self.plan.group_size)
        if self.plan.reward == "random":
            paid = self._of_models(self.draws.coins())
        return Rollouts(keys, answers, torch.where(mask, logprobs, 0.0), mask, paid)

    def _asked(self, keys: torch.Tensor) -> torch.Tensor:
        """The keys (M, P) that the verifier is given."""
        if self.plan.reward == "shuffled keys":
            return keys.gather(1, self._of_models(self.draws.prompt_order()))
        inverted = self.plan.invert_at is not None and self.iteration >= self.plan.invert_at
        return 2**self.plan.bits - 1 - keys if inverted else keys

    # --- Learning -----------------------------------------------------------------------------------------------

    def update(self, batch: Rollouts, states: torch.Tensor, advantages: torch.Tensor, chosen: torch.Tensor) -> None:
        """One step of every model on its own `chosen` answers (M, minibatch)."""
        gains, lengths, stopped = (t.gather(1, chosen) for t in (advantages, batch.lengths, batch.stopped))
        parts = zip(self._parts(lengths), self._parts(stopped), self.variants.values(), strict=True)
        weights = torch.cat([answer_weights(*part) for part in parts])
        # Answers without advantage have no gradient: they are not asked for, unless entropy is paid for everywhere.
        paid = any(variant.entropy_bonus for variant in self.variants.values())
        models, places = (torch.ones_like(gains) if paid else gains * weights).nonzero(as_tuple=True)
        answers = chosen[models, places]
        mask, tokens, states, old = (t[models, answers] for t in (batch.mask, batch.answers, states, batch.logprobs))
        total, audits = torch.zeros((), dtype=torch.float64), self._nothing()
        if len(models):
            logprobs, entropy = token_logprobs(self.policies, models, states, tokens, mask)
            old = logprobs.detach() if self.plan.recompute_old else old
            total = self._loss(audits, models, logprobs, old, gains[models, places], mask, weights[models, places])
        if paid:
            bonuses = torch.tensor([v.entropy_bonus for v in self.variants.values()], dtype=torch.float64)
            total = total - (bonuses.repeat_interleave(len(self.seeds)) * entropy).sum()
        self._step(total)
        self.record.add(self.record.updates, audits | {"clip_share": audits["clip_share"] / lengths.sum(dim=1)})

    def _nothing(self) -> dict[str, torch.Tensor]:
        """What the clip did where no answer has an advantage."""
        models = len(self.seeds) * len(self.variants)
        return {"clip_share": torch.zeros(models).double(), "largest_ratio": torch.ones(models).double()}

    def _loss(self, audits: dict[str, torch.Tensor], models: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        """Sum of all models' losses; `given` as in `bench_loss`. Adds clipped tokens and largest ratios to `audits`."""
        ends = torch.searchsorted(models, torch.arange(len(self.variants) + 1) * len(self.seeds)).tolist()
        total = torch.zeros((), dtype=torch.float64)
        for variant, first, last in zip(self.variants.values(), ends[:-1], ends[1:], strict=True):
            if first == last:
                continue
            parts, surrogate = bench_loss(*(t[first:last] for t in given), variant)
            total = total + parts.sum()
            owners, ratio = models[first:last], surrogate.ratio.detach()
            audits["clip_share"].index_add_(0, owners, surrogate.clip_active.sum(dim=1).double())
            audits["largest_ratio"].scatter_reduce_(0, owners, ratio.amax(dim=1), "amax")
        return total

    def _step(self, total: torch.Tensor) -> None:
        """One step of the optimiser on the sum of all losses: each model's parameters see their own alone."""
        self.optimizer.zero_grad()
        if total.requires_grad:
            total.backward()
        else:  # nobody has anything to learn, and Adam's momentum moves everybody on
            for parameter in self.policies.parameters:
                parameter.grad = torch.zeros_like(parameter)
        norm = gradient_norm(self.policies.parameters)
        if self.plan.gradient_norm is not None:
            rescale(self.policies.parameters, self.plan.gradient_norm / norm.clamp(min=1e-12))
        self.optimizer.step()
        self.record.add(self.record.updates, {"gradient_norm": norm})

    def _of_models(self, drawn: torch.Tensor) -> torch.Tensor:
        """(seeds, ...) -> (M, ...): each variant sees the same."""
        return drawn.repeat(len(self.variants), *[1] * (drawn.ndim - 1))

    def _parts(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(M, ...) by variant."""
        return values.split(len(self.seeds))


def sample_answers(table: torch.Tensor, keys: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sample by inverse CDF from log-probabilities (M, states, 4): answers and log-probs, (M, A, T) each.

    Args:
        keys: (M, A) int64; uniforms: (M, A, T) in [0, 1).
    """
    cumulative = table.exp().cumsum(dim=-1)
    last = torch.full_like(keys, P)
    answers, logprobs = [], []
    for position in range(uniforms.shape[-1]):
        state = state_of(keys, position, last)
        edges = cumulative.gather(1, state.unsqueeze(-1).expand(-1, -1, cumulative.shape[-1]))
        draw = uniforms[..., position : position + 1] * edges[..., -1:]
        token = (draw >= edges).sum(dim=-1).clamp(max=S)
        answers.append(token)
        logprobs.append(table.flatten(1).gather(1, state * table.shape[-1] + token))
        last = token.clamp(max=GOES_ON[-1])  # what follows a stop is not part of the answer
    return torch.stack(answers, dim=-1), torch.stack(logprobs, dim=-1)


def constant(rewards: torch.Tensor) -> torch.Tensor:
    """Groups without signal: (M, P, G) -> (M, P) bool."""
    return constant_groups(rewards.flatten(0, 1)).view(rewards.shape[:2])


def replace_groups(batch: Rollouts, fresh: Rollouts, lacking: torch.Tensor) -> None:
    """Put mixed groups of `fresh` where `batch` lacks them (M, P), in order, as far as they go; in place."""
    prompts = batch.rewards.shape[1]
    to = (~lacking).int().argsort(dim=1, stable=True)
    source = constant(fresh.rewards).int().argsort(dim=1, stable=True)
    filled = torch.minimum(lacking.sum(dim=1), (~constant(fresh.rewards)).sum(dim=1))
    moved = torch.arange(prompts) < filled.unsqueeze(1)  # (M, P): the j-th exchange takes place
    for name in ("keys", "answers", "logprobs", "mask", "rewards"):
        old, new = (getattr(r, name).reshape(len(lacking), prompts, -1) for r in (batch, fresh))
        rows = [index.unsqueeze(-1).expand(-1, -1, old.shape[-1]) for index in (to, source)]
        merged = torch.where(moved.unsqueeze(-1), new.gather(1, rows[1]), old.gather(1, rows[0]))
        setattr(batch, name, old.scatter(1, rows[0], merged).view_as(getattr(batch, name)))


def gradient_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of each model's gradient, (M,)."""
    norms = [torch.linalg.vector_norm(parameter.grad.flatten(1), dim=1) for parameter in parameters]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def rescale(parameters: Sequence[torch.Tensor], factors: torch.Tensor) -> None:
    """Multiply each model's gradient by its factor (M,), in place."""
    for parameter in parameters:
        parameter.grad.mul_(factors.view(-1, *[1] * (parameter.ndim - 1)))
