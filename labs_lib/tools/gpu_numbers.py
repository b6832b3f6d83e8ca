"""What `make gpu` computes from times: bytes and operations that the work needs, medians, and the lines it prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

GIGA, TERA, MEBI = 1e9, 1e12, 1 << 20


@dataclass(frozen=True)
class Timing:
    """Seconds of every repeat of one piece of work."""

    seconds: Sequence[float]

    @property
    def median(self) -> float:
        return median(self.seconds)

    def __str__(self) -> str:
        fastest, slowest = (1000 * pick(self.seconds) for pick in (min, max))
        return f"{1000 * self.median:9.3f} ms ({fastest:.3f} to {slowest:.3f})"


def copy_bytes(numbers: int, itemsize: int) -> int:
    """A copy reads and writes every number once."""
    return 2 * numbers * itemsize


def forward_bytes(rows: int, vocabulary: int, itemsize: int) -> int:
    """Statistics from logits must read the policy's and the reference's logits once."""
    return 2 * rows * vocabulary * itemsize


def backward_bytes(rows: int, vocabulary: int, itemsize: int) -> int:
    """The gradient must read both again and write as many numbers as the policy has logits."""
    return 3 * rows * vocabulary * itemsize


def product_operations(rows: int, vocabulary: int, hidden: int, products: int) -> int:
    """Multiplications and additions of so many products of (rows, hidden) and (hidden, vocabulary) in shape."""
    return 2 * products * rows * vocabulary * hidden


def bandwidth_line(work: str, moved: int, timing: Timing, copy_rate: float | None = None) -> str:
    """Time and GB/s; against ``copy_rate`` (bytes per second) where it is given."""
    rate = moved / timing.median
    share = "" if copy_rate is None else f", {rate / copy_rate:.0%} of the copy's"
    return f"  {work:<32}{timing}  {rate / GIGA:7.0f} GB/s{share}"


def operations_line(work: str, operations: int, timing: Timing, peak_bytes: int) -> str:
    """Time, TFLOP/s and the most memory that was held beside the inputs."""
    rate = operations / timing.median / TERA
    return f"  {work:<32}{timing}  {rate:7.1f} TFLOP/s, {peak_bytes / MEBI:.0f} MiB beside the inputs"


def tokens_line(work: str, tokens: int, timing: Timing) -> str:
    """Time and sampled tokens per second over all answers."""
    return f"  {work:<32}{timing}  {tokens / timing.median:7.0f} tokens/s"
