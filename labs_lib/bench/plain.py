"""The bench's training written for one model: what `BenchTrainer` must equal, and what it is timed against.

One network and one seed, features of every token built anew, a forward pass for each position sampled, and the losses
of `VARIANTS` spelled out. The draws are those of `Draws` for that seed, in the same order.
"""

import torch
from torch.nn.functional import one_hot, pad

from labs_lib.bench.losses import Variant
from labs_lib.bench.policies import initial_mlp
from labs_lib.bench.training import Plan
from labs_lib.errors import LabError
from labs_lib.seeding import named_generator
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS, VOCABULARY, P, S, answer_mask, rewards

EPSILON = 1e-8  # in the division by the group's spread
# What a plan and a variant may set otherwise; the rest of their fields must stand as they come.
PLANNED = ("learning_rate", "iterations", "prompts", "group_size", "epochs", "minibatch", "bits")
VARIED = ("length", "std", "clip_low", "clip_high", "ratio")


class PlainTrainer:
    """One variant with one seed; `model` is an FP64 `torch.nn.Sequential`, `paid` the last rewards (P, G).

    Raises LabError for a plan or a variant that asks for more than the plain loop knows.
    """

    def __init__(self, variant: Variant, seed: int, plan: Plan):
        _require_plain(variant, plan)
        self.variant, self.plan = variant, plan
        self.model = initial_mlp(seed, 2**plan.bits).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), plan.learning_rate)
        self.generator = named_generator(seed, "bench/draws")
        self.paid: torch.Tensor | None = None

    def run(self) -> torch.nn.Sequential:
        """All iterations of the plan; the trained model."""
        for _ in range(self.plan.iterations):
            self.advance()
        return self.model

    def advance(self) -> None:
        """One iteration: sample, judge, and `epochs` passes over the answers in minibatches."""
        plan = self.plan
        prompts = torch.randint(2**plan.bits, (plan.prompts,), generator=self.generator)
        keys = prompts.repeat_interleave(plan.group_size)
        answers, old = self.sample(keys)
        mask = answer_mask(answers)
        self.paid = rewards(answers, keys, plan.bits).view(plan.prompts, plan.group_size)
        advantages = self.advantages(self.paid).flatten()
        for _ in range(plan.epochs):
            for chosen in torch.randperm(plan.answers, generator=self.generator).split(plan.minibatch):
                logprobs = self.logprobs(answers[chosen], keys[chosen])
                loss = plain_loss(self.variant, logprobs, old[chosen], advantages[chosen], mask[chosen])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    @torch.no_grad()
    def sample(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """keys (A,) -> answers and their log-probs, (A, T) each, token by token by inverse CDF."""
        uniforms = torch.rand(len(keys), MAX_TOKENS, generator=self.generator, dtype=torch.float64)
        last = torch.full_like(keys, P)
        answers, logprobs = [], []
        for position in range(MAX_TOKENS):
            choices = self.model(self.features(keys, torch.tensor(position), last)).log_softmax(dim=-1)
            edges = choices.exp().cumsum(dim=-1)
            draw = uniforms[:, position : position + 1] * edges[:, -1:]
            last = (draw >= edges).sum(dim=-1).clamp(max=S)
            answers.append(last)
            logprobs.append(choices.gather(1, last.unsqueeze(-1)).squeeze(-1))
        return torch.stack(answers, dim=1), torch.stack(logprobs, dim=1)

    def logprobs(self, answers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of answers (A, T) as the model is now, (A, T); off the mask they mean nothing."""
        last = pad(answers[:, :-1], (1, 0), value=P)
        choices = self.model(self.features(keys.unsqueeze(1), torch.arange(MAX_TOKENS), last)).log_softmax(dim=-1)
        return choices.gather(2, answers.unsqueeze(-1)).squeeze(-1)

    def features(self, keys: torch.Tensor, positions: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """One-hot key, position and last token side by side; the three index tensors are broadcast."""
        sizes = 2**self.plan.bits, MAX_TOKENS, VOCABULARY
        indices = torch.broadcast_tensors(keys, positions, last)
        return torch.cat([one_hot(i, size) for i, size in zip(indices, sizes, strict=True)], dim=-1).double()

    def advantages(self, paid: torch.Tensor) -> torch.Tensor:
        """(P, G) rewards -> (P, G): what each is above the mean of its group, in units of its spread if so asked."""
        above = paid - paid.mean(dim=1, keepdim=True)
        return above / (paid.std(dim=1, correction=0, keepdim=True) + EPSILON) if self.variant.std else above


def plain_loss(
    variant: Variant, logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The loss of one minibatch, a scalar to minimise: logprobs, old and mask (A, T), advantages (A,)."""
    lengths = mask.sum(dim=1)
    log_ratio = torch.where(mask, logprobs - old, 0.0)
    if variant.ratio == "sequence":
        log_ratio = (log_ratio.sum(dim=1) / lengths).unsqueeze(1).expand_as(mask)
    ratio, gain = log_ratio.exp(), advantages.unsqueeze(1)
    clipped = ratio.clamp(1 - variant.clip_low, 1 + variant.clip_high)
    tokens = torch.where(mask, -torch.minimum(ratio * gain, clipped * gain), 0.0)
    if variant.length == "batch":
        return tokens.sum() / lengths.sum()
    divisor = lengths if variant.length == "answer" else variant.length
    return (tokens.sum(dim=1) / divisor).mean()


def _require_plain(variant: Variant, plan: Plan) -> None:
    for given, known in ((plan, PLANNED), (variant, VARIED)):
        usual = vars(type(given)())
        other = [name for name, value in vars(given).items() if name not in known and value != usual[name]]
        if other:
            raise LabError(
                f"The plain loop knows {type(given).__name__}.{other[0]} only as {usual[other[0]]!r}: "
                "train with BenchTrainer."
            )
