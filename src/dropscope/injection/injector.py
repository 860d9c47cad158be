"""Noise in a model by the plain path: the obviously right way, and the reference for everything faster.

Owns `injected` and the visitor that disturbs values. Weights, buffers, flags and hooks of the model are restored;
global random state is never used. See `tracing` for how a forward is followed, and `noise` for the noise itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dropscope.checks import check_choice
from dropscope.device import runs_kernels
from dropscope.errors import BadInput, Phrase
from dropscope.injection.deferred import DeferredNoise, Ledger
from dropscope.injection.generation import generation_followed, prompt, refuse_cache
from dropscope.injection.masks import Masks
from dropscope.injection.resolution import ResolvedPlacement, SiteNoise, resolve
from dropscope.injection.sites import SiteMap, examine
from dropscope.model import OURS, Call, evaluating, id_keys, is_hooked, unwrap
from dropscope.noise import DRAWS, Keys, disturb, in_blocks, noise_kernels, site_key, start, streams
from dropscope.placement import Placement, as_placement
from dropscope.tracing import About, Point, Taps, Visitor, tapped, trace

Watcher = Callable[[Point, SiteNoise, Tensor, Tensor, Keys], None]
MASKS = ("per_example", "per_pass")
_NO_GRAPHS = "model must run eagerly inside `injected`: a graph of it would repeat the masks of one pass"


class Noise(Visitor):
    """The noise of an open `injected`: which pass comes next, and which examples it is for.

    Attributes:
        placement: What is injected; None where it was resolved before.
        seed: The seed of the noise.
        draws: "independent", or "stratified" over blocks of 16 passes.
        watcher: A function that sees (point, noise, before, after, keys) of every disturbed value, or None.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
        >>> with torch.no_grad(), injected(net, "0=0.5") as noise:
        ...     noise.at(pass_=7, ids=["a", "b"])
        ...     output = net(torch.ones(2, 4))
        >>> [point.address for point in noise.resolved]
        ['0@after_activation']
    """

    def __init__(
        self,
        model: nn.Module,
        placement: Placement | None,
        seed: int,
        masks: str,
        site_map: SiteMap | None,
        resolved: ResolvedPlacement | None,
        *,
        draws: str = "independent",
        may_wait: bool = False,
    ) -> None:
        self.placement = placement
        self.seed = seed
        self.draws, self._stratified = draws, draws == "stratified"
        self.watcher: Watcher | None = None
        self._model = model
        self._per_pass = masks == "per_pass"
        self._calls = 0
        self._pass: int | Tensor | None = None
        self._ids: Sequence[Any] | Tensor | None = None
        self._examples = torch.zeros(0, dtype=torch.int64)
        self._passes = torch.zeros(1, dtype=torch.int64)
        self._site_map = site_map
        self._resolved = resolved
        self._more_calls: dict[tuple[str, str], SiteNoise] | None = None
        self._ledger = Ledger()
        self._packed: tuple[tuple[Any, ...], Tensor, Tensor] | None = None  # of the mask that attention was last given
        self._may_wait = may_wait
        self._modules = list(model.modules())
        self._masks = Masks(seed, draws)
        self._generating = self._under_way = False

    def at(self, pass_: int | Tensor | Sequence[int] | None = None, ids: Sequence[Any] | Tensor | None = None) -> None:
        """Says what the next forwards are.

        Args:
            pass_: The number of the pass, or one per example. None: each forward is the next pass.
            ids: One id per example. None: an example's key is the fingerprint of its inputs.
        """
        if pass_ is not None and not isinstance(pass_, int):
            pass_ = torch.as_tensor(pass_, dtype=torch.int64)
        self._pass = pass_
        self._ids = ids

    @property
    def idle(self) -> bool:
        """Whether there is nothing to put in and nothing to switch off."""
        return self._resolved == {} and self._site_map is not None and not self._site_map.always_on

    def taken_from(self, taps: Taps) -> bool:
        """Whether taps are enough: they reach every point, nothing has to be switched off, and nothing waits."""
        points = self._resolved or {}
        calm = self._site_map is not None and not self._site_map.always_on
        waiting = self._may_wait and self._site_map is not None and bool(self._site_map.chained & points.keys())
        return calm and not waiting and points.keys() <= taps.found.keys()

    @property
    def resolved(self) -> ResolvedPlacement:
        """The points that get noise; empty until the first forward, where no site map was given."""
        return dict(self._resolved or {})

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """While open, forwards are of one pass and of the examples that the first of them has: a generation."""
        self._generating, self._under_way = True, False
        try:
            yield
        finally:
            self._generating = self._under_way = False

    # --- the visitor ------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        refuse_cache(call)
        for module in self._modules:
            if module.training:
                module.training = False  # BatchNorm stays put, even if a caller switches flags inside the context
        self._ledger.settle()
        self._packed = None
        if self._under_way:
            return
        call = prompt(call) if self._generating else call
        if self._resolved is None:
            assert self.placement is not None
            self._site_map = examine(self._model, call)
            self._resolved = resolve(self.placement, self._site_map)
        self._examples = self._example_keys(call)
        number = self._calls if self._pass is None else self._pass
        self._passes = torch.as_tensor(number, dtype=torch.int64).reshape(-1).to(self._examples.device)
        self._masks.begin(self._resolved, self._passes, self._examples, None if isinstance(number, Tensor) else number)
        self._calls += 1
        self._under_way = self._generating

    def _example_keys(self, call: Call) -> Tensor:
        size = call.examples
        if self._per_pass:
            where = self._ids.device if isinstance(self._ids, Tensor) else None
            return torch.zeros(size, dtype=torch.int64, device=where)
        if self._ids is None:
            return call.keys()
        keys = self._ids if isinstance(self._ids, Tensor) and self._ids.dtype == torch.int64 else id_keys(self._ids)
        if self._generating and len(keys) and size % len(keys) == 0:
            keys = keys.repeat_interleave(size // len(keys))  # beams and samples of one prompt lie side by side
        if len(keys) != size:
            received = Phrase(f"{len(keys)} ids for {size} examples")
            raise BadInput("ids must hold one id per example", "ids", received, "pass as many ids as examples")
        return keys

    def wants(self, point: Point) -> bool:
        return self._spec(point) is not None

    def _spec(self, point: Point) -> SiteNoise | None:
        """The noise of a point. A call beyond those of the examined examples gets what every examined call gets."""
        if self._resolved is None or self._site_map is None:
            return None
        if point in self._site_map.values:
            return self._resolved.get(point)
        if self._more_calls is None:
            partly = {p.place for p in self._site_map.values if p not in self._resolved}
            self._more_calls = {p.place: spec for p, spec in self._resolved.items() if p.place not in partly}
        return self._more_calls.get(point.place)

    def visit(self, point: Point, value: Tensor, about: About) -> Tensor:
        spec = self._spec(point)
        assert spec is not None
        self._ledger.settle()
        spec = spec.fitted(point, value, len(self._examples))
        if self._in_one_trip(value, spec):
            kernels = noise_kernels()
            if kernels.takes(value):
                key = self._key_parts(point, value.device)
                if self._waits(point, value.device):
                    return self._ledger.defer(DeferredNoise(value, key, spec.rate, self._stratified))
                return kernels.bernoulli(value, *key, spec.rate, stratified=self._stratified)
        factor = self._masks.factor(point, value, spec) if self.watcher is None else None
        if factor is not None:
            return value * factor
        keys = self._keys(point, value, spec)
        after = disturb(value, keys, spec.rate, spec.kind, spec.mask, spec.layout)
        if self.watcher is not None:
            self.watcher(point, spec, value, after, keys)
        return after

    def attend(self, point: Point, call: dict[str, Any]) -> Tensor | None:
        """By one kernel where there is one: in half precision on a GPU, while no watcher needs the weights."""
        spec, query, key, value = self._spec(point), call["query"], call["key"], call["value"]
        if spec is None or query.dtype == torch.float32 or query.dim() != 4 or not self._in_one_trip(query, spec):
            return None
        kernels = noise_kernels()
        alike = query.shape[1] == key.shape[1] and value.shape[-1] == query.shape[-1] in kernels.HEAD_WIDTHS
        rising = call["scale"] is None or call["scale"] > 0
        if not alike or not rising or any(part.stride(-1) != 1 for part in (query, key, value)):
            return None
        spec.fitted(point, query, len(self._examples))
        key = self._key_parts(point, query.device)
        return kernels.attend(call, *key, spec.rate, self._bits(call), stratified=self._stratified)

    def _bits(self, call: dict[str, Any]) -> Tensor | None:
        """The mask of an attention as the kernel takes it, computed once for all layers that share it."""
        kernels = noise_kernels()
        mask, keys = call["attn_mask"], call["key"].shape[2]
        if mask is None or mask.dtype != torch.bool:
            return None
        if mask.is_inference():  # torch does not count writes to it
            return kernels.packed(mask, keys)
        same = mask.data_ptr(), mask.shape, mask.stride(), mask._version, keys
        if self._packed is None or self._packed[0] != same:
            self._packed = same, mask, kernels.packed(mask, keys)  # held, so that its memory stays its own
        return self._packed[2]

    def _waits(self, point: Point, device: torch.device) -> bool:
        """Whether noise may wait for the sum and the layer norm after it; see `deferred`."""
        plainly = not torch.is_grad_enabled() and not torch.is_autocast_enabled(device.type)
        return self._may_wait and plainly and self._site_map is not None and point in self._site_map.chained

    def before(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
        return self._ledger.before(func, args, kwargs)

    def settle(self) -> None:
        self._ledger.settle()

    def _in_one_trip(self, value: Tensor, spec: SiteNoise) -> bool:
        """Whether kernels may replace `disturb`: element masks on plain values on a GPU, without a watcher."""
        plain = spec.noise == "bernoulli" and spec.mask == "element"
        plain = plain and spec.layout.batch_dim == 0 and spec.layout.folded == 1 and spec.layout.centred is None
        known = value.dtype in (torch.float32, torch.float16, torch.bfloat16)
        learning = torch.is_grad_enabled() and value.requires_grad
        return plain and known and self.watcher is None and not learning and runs_kernels(value.device)

    def _key_parts(self, point: Point, device: torch.device) -> tuple[int, Tensor, Tensor]:
        begun = start(self.seed, site_key(point.name, point.call))
        return begun, self._passes.to(device).contiguous(), self._examples.to(device).contiguous()

    def _keys(self, point: Point, value: Tensor, spec: SiteNoise) -> Keys:
        if spec.layout.batch_dim is None:
            if len(self._passes) > 1 and bool((self._passes != self._passes[0]).any()):
                what = f"pass_ must be one number, because {point.name!r} has one value for all examples"
                raise BadInput(what, "pass_", self._passes.tolist(), "loop over passes")
            return self._streams(point, self._passes[:1], torch.zeros(1, dtype=torch.int64), value.device)
        known = self._masks.keys(point, value.device)
        if known is not None:
            return known
        return self._streams(point, self._passes, self._examples, value.device)

    def _streams(self, point: Point, passes: Tensor, examples: Tensor, device: torch.device) -> Keys:
        numbers, places = in_blocks(passes.to(device), self.draws)
        return Keys.of(streams(self.seed, site_key(point.name, point.call), numbers, examples.to(device)), places)


@contextmanager
def injected(
    model: nn.Module,
    placement: Placement | str,
    seed: int = 0,
    masks: str = "per_example",
    site_map: SiteMap | None = None,
    *,
    draws: str = "independent",
) -> Iterator[Noise]:
    """Puts noise into a model while open: call the model as always, each forward is the next pass.

    The model is in eval mode meanwhile, and its own dropout is off unless the placement asks for it. Afterwards it is
    as it was, also after an exception. One `model.generate` of a decoder is one pass: it runs without a key-value
    cache, and tokens keep their masks while new ones are added.

    Args:
        model: Any `nn.Module`.
        placement: Where noise goes, as a `Placement` or its text.
        seed: The seed of the noise.
        masks: "per_example" draws a mask for each example; "per_pass" one mask for all examples of a pass.
        site_map: The sites, if they are known. None: the first forward finds them.
        draws: "independent" passes, or "stratified" ones: within a block of 16 passes (0 to 15, 16 to 31, …) each unit
            takes a value from every sixteenth of its distribution, so that means over passes are more exact.

    Yields:
        The `Noise`: its `at` says which pass and which examples come next.

    Raises:
        BadInput: If an argument cannot be used, the placement does not fit the model, noise is already in the model,
            something other than the model itself is called inside, the model is compiled, exported or traced there,
            it is given a key-value cache, or `generate` is called on a model that has an encoder.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
        >>> x = torch.ones(2, 4)
        >>> with torch.no_grad(), injected(net, "0=0.5") as noise:
        ...     first, second = net(x), net(x)
        ...     noise.at(pass_=0)
        ...     again = net(x)
        >>> torch.equal(first, second), torch.equal(first, again)
        (False, True)
    """
    placement = as_placement(placement)
    check_choice(masks, "masks", MASKS)
    check_choice(draws, "draws", DRAWS)
    model = unwrap(model)
    resolved = None if site_map is None else resolve(placement, site_map)
    with (
        _open(model, Noise(model, placement, seed, masks, site_map, resolved, draws=draws)) as noise,
        _eager_only(model, noise),
        nullcontext() if noise.idle else generation_followed(model, noise.one_pass),
    ):
        yield noise


@contextmanager
def disturbed(
    model: nn.Module, resolved: ResolvedPlacement, site_map: SiteMap, seed: int = 0, masks: str = "per_example",
    *, draws: str = "independent", may_wait: bool = False, taps: Taps | None = None,
) -> Iterator[Noise]:  # fmt: skip
    """`injected` for a placement already resolved.

    `may_wait` is for models whose code is known; see `deferred`. With `taps` of all its points nothing is traced.
    """
    noise = Noise(model, None, seed, masks, site_map, resolved, draws=draws, may_wait=may_wait)
    with _open(model, noise, taps):
        yield noise


@contextmanager
def _open(model: nn.Module, noise: Noise, taps: Taps | None = None) -> Iterator[Noise]:
    if is_hooked(model):
        what = "model must have one placement injected at a time"
        remedy = "leave the open `with injected(...)` first"
        raise BadInput(what, "model", Phrase(f"{type(model).__name__} with noise in it"), remedy)
    with evaluating(model):
        if noise.idle:
            yield noise  # the model runs untouched, bit for bit
        elif taps is not None and noise.taken_from(taps):
            with tapped(model, noise, taps, noise.resolved):
                yield noise
        else:
            with trace(model, noise, alone=_refuse_submodule):
                yield noise


@contextmanager
def _eager_only(model: nn.Module, noise: Noise) -> Iterator[None]:
    """Refuses what would turn the model into a graph: it would keep the masks of one pass for ever."""
    if noise.idle:
        yield
        return
    handle = model.register_forward_pre_hook(_refuse_graph, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def _refuse_graph(module: nn.Module, args: Any) -> None:
    if torch.compiler.is_dynamo_compiling():
        raise RuntimeError(_NO_GRAPHS)  # Dynamo follows this line in thought only, and reports it or calls us for real
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or _is_compiled():  # type: ignore[attr-defined]
        received = Phrase("a call by torch.compile, torch.export or torch.jit.trace")
        raise BadInput(_NO_GRAPHS, "model", received, "compile or export it outside, or use dropscope.sample")


setattr(_refuse_graph, OURS, True)


def _is_compiled() -> bool:
    """Whether torch.compile called the model and went on without a graph because it met our hooks."""
    frames = sys.modules.get("torch._C._dynamo.eval_frame")
    callback = getattr(frames, "get_eval_frame_callback", lambda: None)()
    return callable(callback)


def _refuse_submodule(path: str) -> bool:
    remedy = "call model(...), not model.forward(...) or a submodule of it"
    raise BadInput("calls inside `injected` must be of the model itself", "model", Phrase(f"a call of {path}"), remedy)
