"""A plan on paper: what a GRPO run of a larger model needs in memory and in time, from its shape and its counts.

Memory is counted tensor by tensor; `labs_lib.scale.memory` counts the same in a run that is really made. Times follow
from two numbers of a device, its bandwidth and its arithmetic, and from shares of them that one really gets: they are
estimates, and no run of this series has tested them.
"""

from dataclasses import dataclass
from typing import Any

GB = 1e9
FP32, BF16 = 4, 2  # bytes


@dataclass(frozen=True)
class Shape:
    """A dense decoder with grouped queries and a gated MLP, as Qwen2 and Llama are."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool  # unembedding and embedding are one
    attention_bias: bool  # of queries, keys and values, as in Qwen2

    @property
    def parameters(self) -> int:
        """Unique parameters."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys
        biases = (queries + 2 * keys) * self.attention_bias
        layer = attention + biases + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    @property
    def cached_per_token(self) -> int:
        """Numbers that the key-value cache keeps of a token."""
        return 2 * self.layers * self.kv_heads * self.head_size


def shape_of(name: str, config: Any) -> Shape:
    """The shape that a `transformers` configuration describes."""
    return Shape(
        name,
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        config.vocab_size,
        config.tie_word_embeddings,
        config.model_type == "qwen2",
    )


# As published: Qwen2.5-0.5B, Qwen2.5-7B, Llama 3.1 70B.
SHAPES = (
    Shape("0.5 B", 24, 896, 4_864, 14, 2, 64, 151_936, True, True),
    Shape("7 B", 28, 3_584, 18_944, 28, 4, 128, 152_064, False, True),
    Shape("70 B", 80, 8_192, 28_672, 64, 8, 128, 128_256, False, False),
)


@dataclass(frozen=True)
class Counts:
    """One iteration: `prompts` x `group_size` answers, `updates` updates, `at_once` answers scored together."""

    prompts: int
    group_size: int
    prompt_tokens: int
    answer_tokens: int
    updates: int
    at_once: int

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    @property
    def sequence(self) -> int:
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True)
class Bytes:
    """Bytes of one number in each role."""

    policy: int
    reference: int
    gradients: int
    adam: int  # both moments
    computing: int  # activations and the key-value cache


IN_FP32 = Bytes(FP32, FP32, FP32, 2 * FP32, FP32)  # as lab 03 does
MIXED = Bytes(FP32, BF16, FP32, 2 * FP32, BF16)  # FP32 weights, BF16 products, a reference that only reads


# --- Memory ----------------------------------------------------------------------------------------


def state_bytes(shape: Shape, size: Bytes) -> dict[str, int]:
    """What stays in memory between two updates, and the gradients, by role."""
    roles = {"policy": size.policy, "reference": size.reference, "gradients": size.gradients, "Adam": size.adam}
    return {role: shape.parameters * bytes_each for role, bytes_each in roles.items()}


def activation_bytes(shape: Shape, tokens: int, keys: float, size: Bytes, checkpointing: bool = False) -> int:
    """What a forward pass over `tokens` tokens keeps for the backward pass, `keys` keys seen by each on average.

    Counted for eager attention: per token and layer six hidden states, queries and repeated keys and values and their
    result, four of the MLP's width, and the attention's weights. With checkpointing one hidden state a layer, and one
    layer in full.
    """
    attention = 4 * shape.heads * shape.head_size + shape.heads * keys
    layer = tokens * (6 * shape.hidden + attention + 4 * shape.intermediate)
    kept = shape.layers * tokens * shape.hidden + layer if checkpointing else shape.layers * layer
    return int(kept * size.computing)


def cache_bytes(shape: Shape, sequences: int, tokens: int, size: Bytes) -> int:
    """The key-value cache of `sequences` sequences of `tokens` tokens."""
    return shape.cached_per_token * sequences * tokens * size.computing


def copy_bytes(shape: Shape, size: Bytes) -> int:
    """A second policy in the numbers that sampling computes with, where those are not the policy's own."""
    return 0 if size.computing == size.policy else shape.parameters * size.computing


def memory(shape: Shape, counts: Counts, size: Bytes, checkpointing: bool = False) -> dict[str, int]:
    """Bytes by part, and their `peak`.

    An update holds the states, gradients among them, and activations; sampling has no gradients, and holds the cache
    and its own copy of the policy. The peak is the larger of the two.
    """
    tokens, keys = counts.at_once * counts.sequence, counts.sequence
    states = state_bytes(shape, size)
    kept = activation_bytes(shape, tokens, keys, size, checkpointing)
    copy, cache = copy_bytes(shape, size), cache_bytes(shape, counts.answers, counts.sequence, size)
    total = sum(states.values())
    peak = max(total + kept, total - states["gradients"] + copy + cache)
    return {**states, "activations": kept, "sampler's copy": copy, "KV cache": cache, "peak": peak}


# --- Time ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """Of one device: bytes of memory, bytes a second, operations a second; and the shares of both that one gets."""

    name: str
    memory: float
    bandwidth: float
    operations: float
    bandwidth_share: float = 0.6
    operations_share: float = 0.4


H100 = Device("H100 SXM, 80 GB", 80 * GB, 3.35e12, 989e12)  # its data sheet: dense BF16
FILLED = 0.9  # of a device's memory


def devices_needed(peak_bytes: float, device: Device = H100) -> int:
    """Devices whose memory holds a peak that is shared evenly (FSDP)."""
    return max(1, -int(-peak_bytes // (FILLED * device.memory)))


def decode_seconds(shape: Shape, sequences: int, tokens: float, devices: int, device: Device = H100) -> float:
    """One step of sampling, one token for each of `sequences` sequences that are `tokens` tokens long.

    Every step reads all weights and the whole cache: it is bound by bandwidth, until some hundreds of sequences share a
    read.
    """
    read = shape.parameters * BF16 + cache_bytes(shape, sequences, 1, MIXED) * tokens
    reading = read / (device.bandwidth * device.bandwidth_share)
    computing = 2 * shape.parameters * sequences / (device.operations * device.operations_share)
    return max(reading, computing) / devices


def tokens_per_second(shape: Shape, sequences: int, tokens: float, devices: int, device: Device = H100) -> float:
    """Tokens that sampling gives in a second."""
    return sequences / decode_seconds(shape, sequences, tokens, devices, device)


@dataclass(frozen=True)
class IterationSeconds:
    """One iteration: sampling, scoring by old policy and reference, updates."""

    sampling: float
    scoring: float
    updating: float

    @property
    def rollout_share(self) -> float:
        """Share of the time in which answers are sampled."""
        return self.sampling / (self.sampling + self.scoring + self.updating)


def iteration_seconds(
    shape: Shape, counts: Counts, devices: int, device: Device = H100, checkpointing: bool = False
) -> IterationSeconds:
    """Seconds of one iteration on `devices` devices that share all its work without loss.

    A forward pass takes two operations a parameter and token, a backward pass twice as many; with checkpointing it
    makes the forward pass once more.
    """
    speed = device.operations * device.operations_share * devices
    forward = 2 * shape.parameters * counts.answers * counts.sequence / speed
    reading = 2 * shape.parameters * counts.prompts * counts.prompt_tokens / speed
    mean = counts.prompt_tokens + counts.answer_tokens / 2
    steps = counts.answer_tokens * decode_seconds(shape, counts.answers, mean, devices, device)
    passes = 4 if checkpointing else 3
    return IterationSeconds(reading + steps, 2 * forward, passes * forward * counts.updates)
