"""`make gpu`: on a machine with a CUDA GPU, the tests that need one, then the speed of kernels and of sampling there.

Bandwidths are compared with that of a copy, measured in the same run; every number is a median with its spread.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from labs_lib.errors import LabError
from labs_lib.paths import ROOT
from labs_lib.runtime import start
from labs_lib.tools.command_line import command_line
from labs_lib.tools.gpu_numbers import (
    Timing,
    backward_bytes,
    bandwidth_line,
    copy_bytes,
    forward_bytes,
    operations_line,
    product_operations,
    tokens_line,
)

PROFILE = "qwen2.5-0.5b"
VOCABULARY, HIDDEN = 151_936, 896
ROWS = (512, 2048)
DTYPES = ("float32", "bfloat16")
WARM_UP = 3
PROMPTS, GROUP_SIZE, PROMPT_TOKENS, ANSWER_TOKENS = 8, 8, 128, 64
NO_EOS = -1  # an id that is never sampled: every answer runs to its full length
# As published with Qwen2.5-0.5B-Instruct; its weights are not needed to measure speed.
CONFIGURATION = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4_864,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
}


def timed(call: Callable[[], object], repeats: int) -> Timing:
    """Seconds of each repeat by CUDA events, after calls that are not counted and that also compile the kernels."""
    import torch

    for _ in range(WARM_UP):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for began, ended in pairs:
        began.record()
        call()
        ended.record()
    torch.cuda.synchronize()
    return Timing([began.elapsed_time(ended) / 1000 for began, ended in pairs])


def peak_beside(call: Callable[[], object]) -> int:
    """The most bytes of GPU memory that `call` holds beyond what is held before it."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def from_logits(rows: int, dtype: str, repeats: int) -> Iterator[str]:
    """Statistics from logits, forward and backward, against a copy of the same tensor."""
    import torch

    from labs_lib.kernels.kl import prefix_statistics

    kind = getattr(torch, dtype)
    policy, reference = (torch.randn(rows, VOCABULARY, device="cuda", dtype=kind) for _ in range(2))
    target, ids = torch.empty_like(policy), torch.randint(VOCABULARY, (rows,), device="cuda")
    policy.requires_grad_()
    loss = sum(value.sum() for value in prefix_statistics(policy, reference, ids, 4096))
    copied = timed(lambda: target.copy_(policy.detach()), repeats)
    moved = copy_bytes(policy.numel(), kind.itemsize)
    forward = timed(lambda: prefix_statistics(policy, reference, ids, 4096), repeats)
    backward = timed(lambda: torch.autograd.grad(loss, policy, retain_graph=True), repeats)
    yield f"KL, log-prob and entropy from logits, {rows} x {VOCABULARY:,}, {dtype}"
    yield bandwidth_line("copy of the logits", moved, copied)
    rate = moved / copied.median
    yield bandwidth_line("forward", forward_bytes(rows, VOCABULARY, kind.itemsize), forward, rate)
    yield bandwidth_line("backward", backward_bytes(rows, VOCABULARY, kind.itemsize), backward, rate)


def from_hidden(rows: int, dtype: str, repeats: int) -> Iterator[str]:
    """Statistics from hidden states: two products forward, four backward (two of them made again)."""
    import torch

    from labs_lib.kernels.kl import prefix_statistics_from_hidden

    kind = getattr(torch, dtype)
    shapes = ((rows, HIDDEN), (VOCABULARY, HIDDEN)) * 2
    tensors = [torch.randn(*shape, device="cuda", dtype=kind).mul_(HIDDEN**-0.25) for shape in shapes]
    ids = torch.randint(VOCABULARY, (rows,), device="cuda")
    leaves = [tensor.requires_grad_() for tensor in tensors[:2]]
    yield f"the same from hidden states, {rows} x {HIDDEN}, {dtype}"
    for name, use_triton in (("Triton", True), ("torch", False)):

        def forward(use_triton: bool = use_triton):
            return sum(v.sum() for v in prefix_statistics_from_hidden(*tensors, ids, 4096, use_triton))

        def both(forward=forward):
            return torch.autograd.grad(forward(), leaves)

        for work, call, products in (("forward", forward, 2), ("forward and backward", both, 6)):
            operations = product_operations(rows, VOCABULARY, HIDDEN, products)
            yield operations_line(f"{name}, {work}", operations, timed(call, repeats), peak_beside(call))


def random_model(dtype: str, device: str = "cuda"):
    """A model of the profile's configuration with random weights, as `load_base` would load the real one."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**CONFIGURATION, dtype=dtype)).to(getattr(torch, dtype)).eval()
    model.set_attn_implementation("eager")
    return model


def sampling(dtype: str, repeats: int) -> Iterator[str]:
    """Tokens per second of `labs_lib.rollout.generate`, prompts read and log-probabilities captured included."""
    import torch

    from labs_lib.rollout import answer_draws, generate

    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(VOCABULARY, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()
    answers = PROMPTS * GROUP_SIZE
    draws = answer_draws(generator, answers, ANSWER_TOKENS)
    model = random_model(dtype)
    call = lambda: generate(model, prompts, GROUP_SIZE, ANSWER_TOKENS, NO_EOS, 0, draws)  # noqa: E731
    yield f"sampling with {PROFILE}'s configuration, {PROMPTS} prompts of {PROMPT_TOKENS} tokens, {dtype}"
    yield tokens_line(f"{answers} answers of {ANSWER_TOKENS} tokens", answers * ANSWER_TOKENS, timed(call, repeats))


def measurements(repeats: int) -> Iterator[str]:
    """Every line that is printed after the tests."""
    import torch

    yield f"{torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {repeats} (fastest to slowest)"
    for dtype in DTYPES:
        for rows in ROWS:
            yield from from_logits(rows, dtype, repeats)
            yield from from_hidden(rows, dtype, repeats)
        yield from sampling(dtype, max(1, repeats // 10))


def run_tests() -> int:
    """`pytest -m gpu` in a process of its own, with compiled kernels; its exit status."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", "tests"], cwd=ROOT, env=environment).returncode


def require_gpu() -> None:
    """Raise LabError where torch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise LabError(
            "make gpu needs a CUDA GPU and torch finds none: run it on a machine with an NVIDIA GPU and a CUDA build "
            "of torch."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Tests, then speeds; the status is that of the tests."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30, help="how often each kernel is timed (default 30)")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        raise LabError(f"--repeats is {options.repeats}: time at least one.")
    require_gpu()
    status = run_tests()
    start(PROFILE)
    for line in measurements(options.repeats):
        print(line, flush=True)
    return status


if __name__ == "__main__":
    command_line(main)
