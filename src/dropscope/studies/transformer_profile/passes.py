"""Many passes of one placement over length-sorted batches: passes folded into the batch, memory bounded.

Owns how much runs at once. Noise is keyed by pass and item, so this equals the plain loop
(`dropscope.sample(..., engine="reference")`) to the rounding of the kernels, whatever the sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.device import free_bytes
from dropscope.engine import precise
from dropscope.injection import SiteMap, SiteNoise, disturbed
from dropscope.model import probabilities
from dropscope.studies.transformer_profile.tokens import TokenBatch
from dropscope.tracing import Point

log = logging.getLogger("dropscope")

# Tokens at once: on a CPU what its caches hold (more is slower), on a GPU what keeps it busy.
_CPU_TOKENS = 1024
_CUDA_TOKENS = 1 << 19
_LIVE_MAPS, _LIVE_STATES = 8, 24  # float32 values alive at the peak: per attention weight, per hidden unit


def probabilities_of_passes(
    model: nn.Module,
    site_map: SiteMap,
    live: Mapping[Point, SiteNoise],
    batches: Sequence[TokenBatch],
    passes: int,
    masks: str = "per_example",
    seed: int = 0,
    tick: Callable[[int], None] = lambda predictions: None,
    may_wait: bool = True,
) -> Iterator[tuple[TokenBatch, int, Tensor]]:
    """(batch, first pass, probabilities `[passes, items, classes]`) for some passes of a batch at a time, in order.

    The model and the batches lie on their device already; the model is one of the library's, so that noise may wait
    (`owed`). A value that all examples share (DeBERTa's relative positions) has one mask per pass, so there one forward
    holds one pass of the whole batch.
    """
    device = next(model.parameters()).device
    shared = any(spec.layout.batch_dim is None for spec in live.values())
    with torch.no_grad(), precise(), disturbed(model, dict(live), site_map, seed, may_wait=may_wait) as noise:
        for batch in batches:
            # One key for all is one mask per pass; made here, it lies on the device.
            keys, first = batch.keys if masks == "per_example" else torch.zeros_like(batch.keys), 0
            at_once = 1 if shared else max(1, rows_at_once(model, batch.length, device) // batch.n)
            while first < passes:
                count = min(at_once, passes - first)
                numbers = torch.arange(first, first + count, device=device).repeat_interleave(batch.n)
                noise.at(pass_=numbers, ids=keys.repeat(count))
                try:
                    output = model(**{name: value.repeat(count, 1) for name, value in batch.inputs.items()})
                except torch.OutOfMemoryError:
                    if count == 1:
                        raise
                    torch.cuda.empty_cache()
                    at_once = max(1, count // 2)
                    log.warning("out of memory: going on with %s passes at once", at_once)
                    continue
                yield batch, first, probabilities(output, check=False).reshape(count, batch.n, -1)
                tick(count * batch.n)
                first += count


def rows_at_once(model: nn.Module, length: int, device: torch.device) -> int:
    """How many (pass, item) pairs of so many tokens fit: within memory, and within what pays."""
    config: Any = model.config
    hidden = int(getattr(config, "hidden_size", 768))
    heads = int(getattr(config, "num_attention_heads", 12))
    row = 4 * length * (_LIVE_STATES * hidden + _LIVE_MAPS * heads * length)
    tokens = _CUDA_TOKENS if device.type == "cuda" else _CPU_TOKENS
    return max(1, min(tokens // length, free_bytes(device) // row))
