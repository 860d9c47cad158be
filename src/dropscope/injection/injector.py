"""Noise in a model by the plain path: the obviously right way, the reference for everything faster, always restored.

Owns `injected` and the visitor that disturbs values. The model's weights, buffers, flags and hooks are afterwards what
they were; global random state is never used. How a forward is followed is `walk.py`'s, what noise is, `noise.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.device import runs_kernels
from dropscope.errors import BadInput
from dropscope.injection.deferred import Debt, Ledger
from dropscope.injection.resolution import SiteNoise, resolve
from dropscope.injection.sites import SiteMap, examine
from dropscope.model import count_examples, evaluating, example_keys, id_keys, is_hooked, unwrap
from dropscope.noise import disturb, noise_kernels, site_key, start, streams
from dropscope.placement import Placement, as_placement
from dropscope.tracing import About, Point, Visitor, walking

Watcher = Callable[[Point, SiteNoise, Tensor, Tensor, Tensor], None]


class Noise(Visitor):
    """The noise of an open `injected`: which pass comes next, and whose examples they are."""

    def __init__(
        self,
        model: nn.Module,
        placement: Placement | None,
        seed: int,
        masks: str,
        site_map: SiteMap | None,
        live: dict[Point, SiteNoise] | None,
        may_wait: bool = False,
    ) -> None:
        self.placement = placement
        self.seed = seed
        self.watcher: Watcher | None = None  # sees (point, live, before, after, keys) of every disturbed value
        self._model = model
        self._per_pass = masks == "per_pass"
        self._calls = 0
        self._pass: int | Tensor | None = None
        self._ids: Sequence[Any] | Tensor | None = None
        self._examples = torch.zeros(0, dtype=torch.int64)
        self._passes = torch.zeros(1, dtype=torch.int64)
        self._site_map = site_map
        self._live = live
        self._more_calls: dict[tuple[str, str], SiteNoise] | None = None
        self._ledger = Ledger()
        self._packed: tuple[tuple[Any, ...], Tensor, Tensor] | None = None  # of the mask that attention was last given
        self._may_wait = may_wait

    def at(self, pass_: int | Tensor | Sequence[int] | None = None, ids: Sequence[Any] | Tensor | None = None) -> Noise:
        """What the next forward is: its pass (a number, or one per example) and the ids of its examples.

        Without a pass, each forward is the next one; without ids, an example's key is the fingerprint of its inputs.
        """
        self._pass = torch.as_tensor(pass_, dtype=torch.int64) if pass_ is not None else None
        self._ids = ids
        return self

    @property
    def idle(self) -> bool:
        return self._live == {} and self._site_map is not None and not self._site_map.always_on

    @property
    def live(self) -> dict[Point, SiteNoise]:
        """The values that get noise; known from the first forward on."""
        return dict(self._live or {})

    # --- the visitor ------------------------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for module in self._model.modules():
            module.training = False  # whatever was switched inside the context, BatchNorm stays put
        if self._live is None:
            assert self.placement is not None
            self._site_map = examine(self._model, args, kwargs)
            self._live = resolve(self.placement, self._site_map)
        size = count_examples(args, kwargs)
        if self._per_pass:
            self._examples = torch.zeros(size, dtype=torch.int64)
        elif self._ids is None:
            self._examples = example_keys(args, kwargs)
        else:
            self._examples = (
                self._ids if isinstance(self._ids, Tensor) and self._ids.dtype == torch.int64 else id_keys(self._ids)
            )
            if len(self._examples) != size:
                raise BadInput(
                    "there is one id per example",
                    "ids",
                    f"{len(self._examples)} ids for {size} examples",
                    "pass as many ids as examples",
                )
        self._ledger.settle()
        self._packed = None
        self._passes = torch.as_tensor(self._calls if self._pass is None else self._pass, dtype=torch.int64).reshape(-1)
        self._calls += 1

    def wants(self, point: Point) -> bool:
        return self._spec(point) is not None

    def _spec(self, point: Point) -> SiteNoise | None:
        """The noise of a point; a call the examined examples did not reach gets what every call before it got."""
        if self._live is None or self._site_map is None:
            return None
        if point in self._site_map.values:
            return self._live.get(point)
        if self._more_calls is None:
            partly = {p[::2] for p in self._site_map.values if p not in self._live}
            self._more_calls = {p[::2]: live for p, live in self._live.items() if p[::2] not in partly}
        return self._more_calls.get((point.name, point.position))

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        live = self._spec(point)
        assert live is not None
        self._ledger.settle()
        if self._in_one_trip(value, live):
            kernels = noise_kernels()

            if kernels.takes(value):
                self._check_examples(point, value, live)
                key = self._key_parts(point, value.device)
                if self._waits(point, value.device):
                    return self._ledger.owe(Debt(value, key, live.rate))
                return kernels.bernoulli(value, *key, live.rate)
        keys = self._keys(point, value, live)
        after = disturb(value, keys, live.rate, live.noise, live.mask, live.layout)
        if self.watcher is not None:
            self.watcher(point, live, value, after, keys)
        return after

    def attend(self, point: Point, call: dict[str, Any]) -> Tensor | None:
        """By one kernel where it can: in half precision on a GPU, with nobody watching the weights."""
        live, query, key, value = self._spec(point), call["query"], call["key"], call["value"]
        if live is None or query.dtype == torch.float32 or query.dim() != 4 or not self._in_one_trip(query, live):
            return None
        kernels = noise_kernels()

        alike = query.shape[1] == key.shape[1] and value.shape[-1] == query.shape[-1] in kernels.HEAD_WIDTHS
        rising = call["scale"] is None or call["scale"] > 0
        if not alike or not rising or any(part.stride(-1) != 1 for part in (query, key, value)):
            return None
        self._check_examples(point, query, live)
        return kernels.attend(call, *self._key_parts(point, query.device), live.rate, self._bits(call))

    def _bits(self, call: dict[str, Any]) -> Tensor | None:
        """The mask of an attention as the kernel takes it, made once for all layers that are given the same."""
        kernels = noise_kernels()

        mask, keys = call["attn_mask"], call["key"].shape[2]
        if mask is None or mask.dtype != torch.bool:
            return None
        if mask.is_inference():  # nothing tells whether it was written to since
            return kernels.packed(mask, keys)
        same = mask.data_ptr(), mask.shape, mask.stride(), mask._version, keys
        if self._packed is None or self._packed[0] != same:
            self._packed = same, mask, kernels.packed(mask, keys)  # held, so that its memory stays its own
        return self._packed[2]

    def _waits(self, point: Point, device: torch.device) -> bool:
        """Whether noise may wait for the sum and the layer norm behind it (`owed`)."""
        plainly = not torch.is_grad_enabled() and not torch.is_autocast_enabled(device.type)
        return self._may_wait and plainly and self._site_map is not None and point in self._site_map.chained

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        return self._ledger.before(func, args, kwargs)

    def settle(self) -> None:
        self._ledger.settle()

    def _in_one_trip(self, value: Tensor, live: SiteNoise) -> bool:
        """Whether kernels may stand in for `disturb`: element masks on plain values on a GPU, with nobody watching."""
        plain = live.noise == "bernoulli" and live.mask == "element"
        plain = plain and live.layout.batch_dim == 0 and live.layout.folded == 1
        known = value.dtype in (torch.float32, torch.float16, torch.bfloat16)
        learning = torch.is_grad_enabled() and value.requires_grad
        return plain and known and self.watcher is None and not learning and runs_kernels(value.device)

    def _key_parts(self, point: Point, device: torch.device) -> tuple[int, Tensor, Tensor]:
        begun = start(self.seed, site_key(point.name, point.call))
        return begun, self._passes.to(device).contiguous(), self._examples.to(device).contiguous()

    def _keys(self, point: Point, value: Tensor, live: SiteNoise) -> Tensor:
        examples = self._examples
        if live.layout.batch_dim is None:
            if len(self._passes) > 1 and bool((self._passes != self._passes[0]).any()):
                raise BadInput(
                    f"{point.name!r} has one value for all examples, so one forward holds one pass",
                    "pass_",
                    self._passes.tolist(),
                    "loop over passes",
                )
            return streams(
                self.seed,
                site_key(point.name, point.call),
                self._passes[:1].to(value.device),
                torch.zeros(1, dtype=torch.int64, device=value.device),
            )
        self._check_examples(point, value, live)
        return streams(
            self.seed, site_key(point.name, point.call), self._passes.to(value.device), examples.to(value.device)
        )

    def _check_examples(self, point: Point, value: Tensor, live: SiteNoise) -> None:
        examples = self._examples
        assert live.layout.batch_dim is not None
        if value.shape[live.layout.batch_dim] != len(examples) * live.layout.folded:
            remedy = f"call the model on {len(examples)} examples at a time along dimension 0"
            raise BadInput(
                f"dimension {live.layout.batch_dim} of {point.name}@{point.position} counts examples",
                "its shape", tuple(value.shape), remedy,
            )  # fmt: skip


@contextmanager
def injected(
    model: nn.Module,
    placement: Placement | str,
    seed: int = 0,
    masks: str = "per_example",
    site_map: SiteMap | None = None,
) -> Iterator[Noise]:
    """Noise in `model` while open: call the model as always. Its own dropout is off unless the placement asks for it.

    >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
    >>> x = torch.ones(2, 4)
    >>> with torch.no_grad(), injected(net, "0=0.5") as noise:
    ...     first, second = net(x), net(x)
    ...     again = noise.at(pass_=0) and net(x)
    >>> torch.equal(first, second), torch.equal(first, again)
    (False, True)
    """
    placement = as_placement(placement)
    if masks not in ("per_example", "per_pass"):
        raise BadInput("masks are drawn per_example or per_pass", "masks", masks, "write masks='per_example'")
    model = unwrap(model)
    live = None if site_map is None else resolve(placement, site_map)
    with _open(model, Noise(model, placement, seed, masks, site_map, live)) as noise:
        yield noise


@contextmanager
def disturbed(
    model: nn.Module,
    live: dict[Point, SiteNoise],
    site_map: SiteMap,
    seed: int = 0,
    masks: str = "per_example",
    may_wait: bool = False,
) -> Iterator[Noise]:
    """`injected` for values already resolved. `may_wait` for a model whose code is known: see `owed`."""
    with _open(model, Noise(model, None, seed, masks, site_map, live, may_wait)) as noise:
        yield noise


@contextmanager
def _open(model: nn.Module, noise: Noise) -> Iterator[Noise]:
    if is_hooked(model):
        raise BadInput(
            "one placement is injected at a time",
            "model",
            type(model).__name__,
            "leave the open `with injected(...)` first",
        )
    with evaluating(model):
        if noise.idle:
            yield noise  # nothing to put in and nothing to switch off: the model runs untouched, bit for bit
        else:
            with walking(model, noise, alone=_refuse_part):
                yield noise


def _refuse_part(path: str) -> None:
    raise BadInput(
        "noise goes into calls of the model itself",
        "part called alone",
        path,
        "call model(...), not model.forward(...) or a part of it",
    )
