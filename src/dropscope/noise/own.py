"""Noise of a user's own: a function of uniforms and a rate, on the same keyed words as every other noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dropscope.errors import BadInput, DropscopeError, Phrase, first_line


@dataclass(frozen=True)
class OwnNoise:
    """A function of a user's own under its name.

    Attributes:
        name: What placements call it.
        function: Takes uniforms `[n, *units]`, float32 in (0, 1), and a rate; returns the factor on each unit, of the
            same shape. What it gives an example must depend on that example's uniforms alone.
    """

    name: str
    function: Callable[[Tensor, float], Tensor]

    def factors(self, words: Tensor, rate: float, mask: str, folded: int = 1) -> Tensor:
        """The factor on each unit, float32 and shaped like `words`, which hold a row per example.

        An example that takes several indices of the batch dimension counts as that many rows.

        >>> words = torch.tensor([[-(2**31), 0], [2**30, 2**31 - 1]], dtype=torch.int32)
        >>> own = OwnNoise("hard", lambda uniforms, rate: (uniforms >= rate).float() / (1 - rate))
        >>> own.factors(words, 0.6, "element")
        tensor([[0.0000, 0.0000],
                [2.5000, 2.5000]])
        """
        rows = 1 if mask == "element" and folded == 1 else 2
        given = uniforms(words).flatten(0, rows - 1)
        try:
            # The function's own operations are no part of the model that is followed.
            with torch._C.DisableTorchFunction(), torch.no_grad():
                found = self.function(given, rate)
        except DropscopeError:
            raise
        except Exception as error:
            rule = f"noise {self.name!r} must take uniforms and a rate"
            received = Phrase(f"{type(error).__name__}: {first_line(error)}, for uniforms {tuple(given.shape)}")
            raise BadInput(rule, "noise", received, _SHAPES) from error
        if not isinstance(found, Tensor) or found.shape != given.shape:
            rule = f"noise {self.name!r} must return a tensor of factors shaped like its uniforms, {tuple(given.shape)}"
            received = Phrase(f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__)
            raise BadInput(rule, "noise", received, _SHAPES)
        return found.detach().to(torch.float32).reshape(words.shape)


_SHAPES = "write mask=element for uniforms shaped like the value [n, ...], mask=channel for one per feature map [n, C]"


def uniforms(words: Tensor) -> Tensor:
    """23 bits of each word as a float32 in (0, 1), the same number on every device.

    >>> uniforms(torch.tensor([-(2**31), 0, 2**31 - 1], dtype=torch.int32)).tolist()
    [5.960464477539063e-08, 0.5000000596046448, 0.9999999403953552]
    """
    return ((words >> 9).to(torch.float32) * 2 + 1) * 2.0**-24 + 0.5
