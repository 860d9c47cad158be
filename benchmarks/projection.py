"""What sweeps and scoring of a ViT-L would cost on 1, 64 and 1,024 GPUs: arithmetic, from one measured rate.

    python benchmarks/projection.py

Nothing here is run on a GPU. The rate is that of the whole sweep of a ViT-base on one H200 (benchmarks/README.md, "Many
models"): 12 sites × 2 rates, 20 passes, 64 images in 9.10 s. Work is counted as the plan counts it: a site multiplies
the variants that run behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from timing import table

MEASURED = 9.10  # seconds of that sweep, set-up excluded
PASSES, IMAGES, PLACEMENTS, EXAMPLES = 100, 50_000, 999_999, 10**9
GPUS = (1, 64, 1024)


@dataclass(frozen=True)
class Transformer:
    """Multiply-adds of a vision transformer for one image of 224 × 224 in patches of 16."""

    blocks: int
    width: int
    classes: int
    tokens: int = 197

    @property
    def block(self) -> float:
        attention = 4 * self.width**2 * self.tokens + 2 * self.tokens**2 * self.width
        return attention + 2 * self.second_layer

    @property
    def second_layer(self) -> float:
        """Of the feed-forward part of a block: what is behind noise in its hidden layer."""
        return 4 * self.width**2 * self.tokens

    @property
    def head(self) -> float:
        return self.width * self.classes

    @property
    def whole(self) -> float:
        return self.blocks * self.block + 3 * 16**2 * self.width * (self.tokens - 1) + self.head

    def behind(self, sites: Sequence[int], rates: int) -> float:
        """Of one pass over all subsets of sites, hidden layers of blocks counted from the last; 0 is the head's input.

        Between a site and the next one, so many variants run as there are choices up to it.
        """
        total, variants = 0.0, 1
        ends = [self._left(site) for site in sites] + [0.0]
        for left, following in pairwise(ends):
            variants *= rates + 1
            total += (variants - 1) * (left - following)
        return total

    def _left(self, site: int) -> float:
        return self.head if site == 0 else self.second_layer + (site - 1) * self.block + self.head


def main() -> None:
    base, large = Transformer(12, 768, 10), Transformer(24, 1024, 1000)
    measured = 2 * sum(base.behind([site], 1) for site in range(1, 13)) * 20 * 64
    rate = 2 * measured / MEASURED
    print(f"ViT-base {base.whole / 1e9:.1f} G, ViT-L {large.whole / 1e9:.1f} G multiply-adds an image")
    print(f"measured sweep: {measured:.3g} multiply-adds in {MEASURED} s: {rate / 1e12:.0f} TFLOP/s")
    cases = {
        "10⁶ placements, hidden layers of the last six blocks": large.behind([6, 5, 4, 3, 2, 1], 9) * PASSES * IMAGES,
        "10⁶ placements, five hidden layers and the head's input": large.behind([5, 4, 3, 2, 1, 0], 9)
        * PASSES
        * IMAGES,
        "the same, 20 passes on 10,000 images": large.behind([5, 4, 3, 2, 1, 0], 9) * 20 * 10_000,
        "10⁶ placements, one loop each": large.whole * PLACEMENTS * PASSES * IMAGES,
        "10⁹ examples under `last`, 100 passes": (large.whole + PASSES * large.head) * EXAMPLES,
        "10⁹ examples, one plain pass": large.whole * EXAMPLES,
        "10⁹ examples under `last`, one loop": large.whole * PASSES * EXAMPLES,
    }
    rows = []
    for name, work in cases.items():
        seconds = 2 * work / rate
        rows.append([name, f"{work:.2g}", *(_duration(seconds / count) for count in GPUS)])
    print(table(["what", "multiply-adds", *(f"{count:,} GPU{'s' * (count > 1)}" for count in GPUS)], rows))


def _duration(seconds: float) -> str:
    for name, length in (("years", 365.25 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {name}"
    return f"{seconds:.3g} s"


if __name__ == "__main__":
    main()
