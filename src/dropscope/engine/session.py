"""The session every run starts from: the model on its device, the data read, the sites known, every argument checked.

Owns the checks that come before any work, and the one way a model is called on a batch. Nothing is run twice for them.
"""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from dropscope.checks import check_choice, check_seed
from dropscope.data import Batch, Data, Keys, check_labels, read_data
from dropscope.device import as_device, keep_heap
from dropscope.errors import BadInput, Phrase
from dropscope.injection import (
    MASKS,
    Audit,
    Audited,
    Finding,
    Noise,
    ResolvedPlacement,
    SiteMap,
    audit_resolved,
    audit_union,
    disturbed,
    examine,
    resolve,
)
from dropscope.loading import as_class_names, as_loaded, class_names_of_model, settle_class_names
from dropscope.model import (
    Call,
    Outputs,
    Shadows,
    accepted,
    device_of,
    probabilities,
    random_state_kept,
    shadow,
    state_kept,
    unwrap,
)
from dropscope.noise import DRAWS
from dropscope.placement import Placement, as_placement
from dropscope.tracing import Taps

PRECISIONS = ("fp32", "tf32", "bf16")
_BLOCKS = itertools.count(1)
_sealed = threading.local()

_SHAPES = 8  # of batches that the model is tried on before the passes


@dataclass(frozen=True, eq=False)
class Session:
    """A model and its data, checked."""

    model: nn.Module  # sites and audits are its; nothing runs in it
    shadows: Shadows  # of the model, or of its copy in half precision: they run the passes
    data: Data
    site_map: SiteMap
    outputs: Outputs
    device: torch.device
    seed: int
    masks: str
    classes: int
    dense: bool  # a prediction per voxel, pixel or label, not per example
    ignore_label: int | None = None  # marks what has no label
    precision: str = "fp32"  # one of PRECISIONS
    class_names: tuple[str, ...] | None = None  # in the order of the outputs
    draws: str = "independent"  # or "stratified"

    @property
    def running(self) -> nn.Module:
        """The model that runs the passes: a shadow that is this thread's alone."""
        return self.shadows.own

    @property
    def half(self) -> bool:
        return self.precision == "bf16"

    def forward(self, call: Call) -> Tensor:
        """Probabilities [examples, classes, …] of one forward, noise or none, as the open context has it."""
        return probabilities(self.fed(call).run(self.running), self.outputs)

    def fed(self, call: Call) -> Call:
        """The call as the model that runs takes it: on its device, numbers in its precision."""
        call = call.to(self.device)
        if not self.half:
            return call
        return call.map(lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t)

    def disturbed(
        self, resolved: ResolvedPlacement, *, may_wait: bool = False, taps: Taps | None = None
    ) -> AbstractContextManager[Noise]:
        noise = self.running, resolved, self.site_map, self.seed, self.masks
        return disturbed(*noise, draws=self.draws, may_wait=may_wait, taps=taps)

    def sealed(self) -> AbstractContextManager[None]:
        """`sealed`, in which products are as the precision says."""
        return sealed(tf32=self.precision == "tf32")

    def plain(self, batch: Batch) -> Tensor:
        with self.disturbed({}):
            return self.forward(batch.call)

    def resolve(self, placements: Sequence[Placement | str]) -> list[ResolvedPlacement]:
        return [resolve(as_placement(placement), self.site_map) for placement in placements]

    def audit(self, resolved: ResolvedPlacement, placement: Placement | str) -> Audit:
        """Raises `AuditFailed` where the placement does not take effect on the first examples."""
        with sealed(repeatable=True):
            return audit_resolved(self._audited(), resolved, as_placement(placement)).raise_if_failed()

    def audit_all(self, resolved: Sequence[ResolvedPlacement], placements: Sequence[Placement]) -> list[Finding]:
        """As `audit`, for every point of many placements once."""
        with sealed(repeatable=True):
            return audit_union(self._audited(), resolved, placements)

    def _audited(self) -> Audited:
        model = shadow(self.model) if self.half else self.running
        return Audited(model, self.site_map, self.data.batches[0].call.to(self.device), self.seed)

    def in_fp32(self) -> Session:
        return replace(self, precision="fp32", shadows=Shadows(self.model) if self.half else self.shadows)

    def with_data(self, data: Data) -> Session:
        return replace(self, data=data)


class SessionOptions(TypedDict, total=False):
    """The keyword-only parameters of `open_session`, for functions that hand them on."""

    seed: int
    masks: str
    draws: str
    outputs: Outputs
    ids: Sequence[Any] | str | None
    groups: Sequence[Hashable] | str | None
    batch_size: int
    device: str | torch.device | None
    precision: str
    keys: Keys | None
    ignore_label: int | None
    tokenizer: Any
    class_names: Sequence[str] | str | None


def open_session(
    model: nn.Module,
    data: Any,
    *,
    seed: int = 0,
    masks: str = "per_example",
    draws: str = "independent",
    outputs: Outputs = "logits",
    ids: Sequence[Any] | str | None = None,
    groups: Sequence[Hashable] | str | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    precision: str = "fp32",
    keys: Keys | None = None,
    ignore_label: int | None = None,
    tokenizer: Any = None,
    class_names: Sequence[str] | str | None = None,
) -> Session:
    """Reads and checks everything, before any pass is run.

    Args:
        model: A trained model. It is left exactly as it was.
        data: `(inputs, labels)`, inputs alone, a Dataset, a DataLoader, an iterable of batches, or a tokenised
            `datasets.Dataset`. Inputs are a tensor, a tuple of tensors or a dict of tensors. Also an image folder, a
            table of texts, texts or a frame, or what `load_data` returns.
        seed: Seed of the noise. The same seed, placement and example give the same masks everywhere.
        masks: "per_example" draws a mask for every example, as nn.Dropout does; "per_pass" one for all of a pass.
        draws: "independent" passes, or "stratified" ones: in each 16 passes a unit takes a value from every sixteenth
            of its distribution. Each pass alone is as before; means over passes are more exact.
        outputs: What the model returns: "logits", "probabilities", "binary_logit", "multilabel_logits", or a function
            from its output to probabilities.
        ids: What keys an example's noise: its own inputs (None), one id per example, "index", or a field of dicts.
        groups: One per example (patient, volume), or a field of dicts. Intervals resample groups, not examples.
        batch_size: Examples per batch, for data that is not in batches yet.
        device: Where to run; where the model is, if None.
        precision: "fp32"; "tf32", which rounds what enters convolutions and products to 11 bits on a GPU, as torch's
            own convolutions do by default; or "bf16" for a copy of the model in half precision.
        keys: For dicts: the names of input and label, such as ("image", "label").
        ignore_label: The label of what counts nowhere, in dense labels.
        tokenizer: For texts: the tokenizer of the model, or the name of its checkpoint.
        class_names: In the order of the model's outputs: a sequence, a text with commas, or a file with one per line.
            None takes those of the data, or of the model's config.

    Returns:
        The session.

    Raises:
        BadInput: For anything that cannot be used.
    """
    model = unwrap(model)
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        what, remedy = "passes must run at the stated precision", "leave the autocast context"
        raise BadInput(what, "precision", Phrase("an autocast that is on"), remedy)
    check_choice(precision, "precision", PRECISIONS)
    check_choice(masks, "masks", MASKS)
    check_choice(draws, "draws", DRAWS)
    check_seed(seed)
    where = device_of(model)
    if device is not None and as_device(device) != where:
        where = as_device(device)
        model = copy.deepcopy(model).to(where)
    of_data: tuple[str, ...] | None = None
    if where.type == "cpu":
        keep_heap()
    if not isinstance(data, Data):
        loaded = as_loaded(data, model, tokenizer)
        of_data = loaded.class_names
        data = read_data(loaded.dataset, ids=ids, groups=groups, batch_size=batch_size, keys=keys or loaded.keys)
        if ids is None and loaded.names is not None:
            data = data.named(loaded.names)
    first = data.batches[0]
    labels = [batch.labels for batch in data.batches if batch.labels is not None]
    few = first.call.to(where).take(range(min(2, first.n)))
    shadows = Shadows(model)
    site_map, shown = _examined(shadows.own, few, outputs, labels)
    if len(shown) != min(2, first.n):
        remedy = "return one row per example along axis 0"
        received = Phrase(f"an output of shape {tuple(shown.shape)} for {min(2, first.n)} examples")
        raise BadInput("model must return a row per example", "model", received, remedy)
    for other in _other_shapes(data):
        with accepted(other), torch.no_grad(), sealed(), state_kept(model), disturbed(model, {}, site_map):
            other.to(where).run(model)
    for part in labels:
        check_labels(part, shown.shape[1], ignore_label)
    if labels and labels[0].shape[1:] != shown.shape[2:]:
        remedy = "pass one class index per prediction: [N] for classification, [N, *spatial] for dense outputs"
        received = Phrase(f"shape {tuple(labels[0].shape)}")
        raise BadInput("the labels must have the shape of the predictions", "labels", received, remedy)
    if precision == "bf16":
        shadows = Shadows(copy.deepcopy(model).to(torch.bfloat16))
    classes, dense = shown.shape[1], shown.dim() > 2
    named = shown.shape[2] if outputs == "multilabel_logits" else classes
    names = settle_class_names(as_class_names(class_names), of_data, class_names_of_model(model), named)
    return Session(
        model, shadows, data, site_map, outputs, where, seed, masks, classes, dense, ignore_label, precision, names,
        draws,
    )  # fmt: skip


def _examined(model: nn.Module, call: Call, outputs: Outputs, labels: Sequence[Tensor]) -> tuple[SiteMap, Tensor]:
    """The sites, and the probabilities of a plain forward."""
    with accepted(call), torch.no_grad(), sealed(repeatable=True), state_kept(model):
        site_map = examine(model, call)
        with disturbed(model, {}, site_map):
            return site_map, probabilities(call.run(model), outputs, labels=labels)


def _other_shapes(data: Data) -> Iterator[Call]:
    """An example of each further shape among the batches, a few at most; texts differ in length and are left out."""
    seen = {data.batches[0].signature}
    for batch in data.batches[1:]:
        if len(seen) < _SHAPES and batch.lengths is None and batch.signature not in seen:
            seen.add(batch.signature)
            yield batch.call.take([0])


@contextmanager
def sealed(*, tf32: bool = False, repeatable: bool = False) -> Iterator[None]:
    """A block in which passes depend on no setting of the process, and after which the process is as it was.

    Convolutions and products are true fp32 unless asked otherwise: cuDNN takes TF32 by default, which moves scores.
    Where the bits of two forwards are compared, it takes no algorithm that sums in changing order; the others are up to
    three times as fast for a transposed convolution. These settings are the whole process's, so one thread at a time
    is in such a block. What a model draws there from global random state, which has no effect on a model that passes
    its audit, leaves that state as it was; every block draws something else, so that
    a model that is random by itself is seen to be. A block with the settings of the one around it is part of that.
    """
    if getattr(_sealed, "settings", None) == (tf32, repeatable):
        yield
        return
    with random_state_kept():
        seed = next(_BLOCKS)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the state that a model may draw from
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
        kept = cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic, cudnn.benchmark
        cudnn.allow_tf32 = products.allow_tf32 = tf32
        cudnn.deterministic, cudnn.benchmark = repeatable, False
        _sealed.settings, around = (tf32, repeatable), getattr(_sealed, "settings", None)
        try:
            yield
        finally:
            _sealed.settings = around
            cudnn.allow_tf32, products.allow_tf32, cudnn.deterministic, cudnn.benchmark = kept
