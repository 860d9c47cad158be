"""Export: a model with its passes as one graph, written to a file.

Owns what the graph computes and what cannot be exported. See `formats` for the files, `engine.PassesForward` for the
passes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope.atomic import atomic_write
from dropscope.checks import check_choice, check_new_file, check_passes, finite_number
from dropscope.data import Batch
from dropscope.deploy import formats
from dropscope.deploy.formats import Exported, ExportFacts, open_export
from dropscope.deploy.recipes import Recipe
from dropscope.deploy.rules import DeferralRule
from dropscope.engine import (
    CaptureFailed,
    PassesForward,
    SessionOptions,
    feed_values,
    input_names,
    open_session,
    passes_forward,
)
from dropscope.errors import BadInput, Phrase, first_line
from dropscope.measures import Measure, resolve
from dropscope.measures.statistics import PassStatistics
from dropscope.parameters import shares
from dropscope.placement import Placement, as_placement

LABELS = ("plain", "mean")
_FEW = 8  # examples that the file is tried on
_TRACED = 5  # those of a graph: 0 and 1 are special to torch's shapes
_ALIKE = 1e-4  # largest difference between the file and the model on the examples given
_NOTHING = -1e30  # a threshold that keeps nothing
_TIE = 2e-6  # an example at the threshold itself is kept, whatever the last bits are


@shares(open_session, without=("groups", "ignore_label", "precision", "device", "class_names", "ids"))
def export(
    model: nn.Module,
    placement: Placement | str | None,
    data: Any,
    out: str | Path,
    passes: int = 100,
    *,
    measure: str | Callable[..., Tensor] | Measure | None = None,
    label: str = "plain",
    threshold: float | None = None,
    length: int | None = None,
    package: bool = False,
    overwrite: bool = False,
    **options: Unpack[SessionOptions],
) -> Exported:
    """Writes a model with its passes inside to one file, which runs without the model's code: ONNX or .pt2.

    The file takes the model's inputs and `examples`, int64 `[N]`: a key per example, which its noise is a function of.
    It returns `probabilities` (of the passes on average), `plain_probabilities`, `uncertainty` and `label`; with a
    threshold also `defer`. The noise is keyed integer arithmetic, the same words everywhere. What comes before the
    first noise runs once, what comes after it runs as a batch of N × passes.

    Args:
        model: A trained model. It is left exactly as it was.
        placement: Where noise goes, such as "own" or "last=0.5"; None for one plain pass.
        data: A few examples, in any form that `uncertainty` takes; labels are not read. They fix the shape of one
            example; the number of examples stays open.
        out: The file: .onnx, or .pt2 for torch.
        passes: How many stochastic forwards.
        measure: A measure by name, or a function of your own; None takes "predictive_entropy", or
            "plain_max_probability" without noise.
        label: Whether the "plain" pass or the "mean" of the passes decides the label.
        threshold: What is more uncertain is deferred, as `DeferralRule.threshold` says.
        length: For texts: tokens that the file takes; None takes as many as the longest of the first examples has.
        package: For .pt2: whether it is compiled, which takes a C++ compiler and about a minute. The file then
            runs on machines like this one alone, without the compiler.
        overwrite: Whether to replace the file if it exists.

    Returns:
        The file, ready to run. It has been run on the first examples, and says what the model says.

    Raises:
        BadInput: For anything that cannot be used, a model or a measure that no graph can hold, or other answers.
        MissingExtra: For .onnx without the packages of `dropscope[export]`.
        AuditFailed: Where the noise would not take effect as asked.

    Examples:
        >>> import tempfile
        >>> net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = export(net, "last=0.5", torch.randn(3, 4), f"{folder}/net.pt2", passes=5)
        >>> file.facts.inputs, file.facts.classes
        ({'input': [4]}, 3)
    """
    target = check_new_file(str(out), "out", formats.FORMS, overwrite=overwrite)
    check_passes(passes)
    check_choice(label, "label", LABELS)
    onnx = target.suffix == ".onnx"
    if onnx:
        formats.check_installed()
        formats.check_size(model)
    if package and onnx:
        raise BadInput("package must be False for ONNX", "package", package, "write out='net.pt2'")
    if threshold is not None and finite_number(threshold) is None:
        raise BadInput("threshold must be a number", "threshold", threshold, "write threshold=rule.threshold")
    asked = as_placement("none" if placement is None else placement)
    row = _measure(measure, plain=asked.is_none)
    options["device"] = "cpu"
    session = open_session(model, data, **options)
    session = session.with_data(session.data.part(range(min(session.data.batches[0].n, _FEW))))
    if length is not None:
        session = session.with_data(session.data.padded(length))
    (resolved,) = session.resolve([asked])
    if resolved:
        session.audit(resolved, asked)
    try:
        forward = passes_forward(session, resolved, passes if resolved else 1)
    except CaptureFailed as error:
        what = "model must be one whose passes a graph can hold"
        raise BadInput(what, "model", Phrase(str(error)), "choose another placement, or change that part") from error
    batch = session.data.batches[0]
    inputs = feed_values(batch.call)
    facts = ExportFacts(
        str(asked), passes if resolved else 1, row.name, label, session.seed, session.draws, threshold,
        dict(zip(input_names(batch.call), ([*value.shape[1:]] for value in inputs), strict=True)), session.classes,
    )  # fmt: skip
    whole = _Whole(forward, row, facts).eval()
    given = [batch.keys, *inputs]
    with torch.no_grad(), formats.quiet():
        expected = [np.asarray(value) for value in whole(*given)]  # first: what is cached must not be made in a graph
        program = _program(whole, batch, facts)
        write = formats.write_onnx if onnx else (formats.write_package if package else formats.write_program)
        atomic_write(target, lambda part: write(program, part, facts))
    made = open_export(target)
    try:
        _check_alike(made, given, expected)
    except BadInput:
        target.unlink()
        raise
    return made


class _Whole(nn.Module):
    """The graph of a file: from keys and inputs to its outputs, in the order of their names."""

    def __init__(self, forward: PassesForward, row: Measure, facts: ExportFacts) -> None:
        super().__init__()
        self.passes, self._row, self._facts = forward, row, facts

    def forward(self, examples: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        plain, passes = self.passes(examples, *inputs)
        mean = passes.mean(0, dtype=torch.float64).float()
        value = self._uncertainty(plain, passes).float()
        decides = plain if self._facts.label == "plain" else mean
        found = (mean, plain, value, decides.argmax(1))
        return found if self._facts.threshold is None else (*found, ~(value.double() <= self._facts.threshold + _TIE))

    def _uncertainty(self, plain: Tensor, passes: Tensor) -> Tensor:
        row = self._row
        if row.of != "statistics":
            return row.function(plain if row.of == "plain" else passes)
        kept = PassStatistics({"sum_p", *row.needs}, plain.movedim(1, -1))
        kept.update(passes.movedim(2, -1), passes_dim=0, check=False)
        return row.function(kept)


def _measure(measure: Any, *, plain: bool) -> Measure:
    (row,) = resolve(measure or ("plain_max_probability" if plain else "predictive_entropy"))
    if plain and row.of != "plain":
        what = "measure must be of the plain pass where there is no noise"
        raise BadInput(what, "measure", row.name, "write measure='plain_entropy', or give a placement")
    if "histogram" in row.needs:
        what = "measure must be one that a graph can hold, and histograms are counted outside of it"
        raise BadInput(what, "measure", row.name, "write measure='predictive_entropy', or 'averaged_variance'")
    return row


def _program(whole: _Whole, batch: Batch, facts: ExportFacts) -> torch.export.ExportedProgram:
    """The graph for any number of examples."""
    several = batch.take([i % batch.n for i in range(_TRACED)])
    given = [several.keys, *feed_values(several.call)]
    number = torch.export.Dim("N", min=1, max=1 << 20)
    shapes = [{0: number} if value.dim() and len(value) == _TRACED else None for value in given]
    try:
        return torch.export.export(whole, tuple(given), dynamic_shapes=(shapes[0], tuple(shapes[1:])), strict=False)
    except Exception as error:
        remedy = "choose another measure, noise or placement"
        what = f"model with the measure {facts.measure!r} must be one that torch.export takes"
        raise BadInput(what, "model", Phrase(first_line(error)), remedy) from error


def _check_alike(made: Exported, given: list[Tensor], expected: list[NDArray[Any]]) -> None:
    found = [np.asarray(value) for value in made.run(given)]
    apart = max(float(np.abs(a - b).max()) for a, b in zip(found[:3], expected[:3], strict=True))
    if not apart <= _ALIKE:
        got = Phrase(f"probabilities or uncertainties that are {apart:.1e} away")
        raise BadInput("the file must say what the model says", "model", got, "write the other form, .onnx or .pt2")


def export_recipe(
    model: nn.Module, recipe: Recipe, rule: DeferralRule | None, data: Any, out: str | Path, **options: Any
) -> Exported:
    """`export` of a recipe; the file defers as the rule does.

    Raises:
        BadInput: If the rule is per class, or the recipe is in half precision, which no file here is.
    """
    if rule is not None and rule.thresholds is not None:
        what, remedy = "rule must have one threshold", "export without it, and apply it to uncertainty and label"
        raise BadInput(what, "rule", Phrase("a threshold per class"), remedy)
    if recipe.precision == "bf16":
        raise BadInput("precision must be fp32 or tf32 for a file", "precision", recipe.precision, "fit it in fp32")
    threshold = None if rule is None else (_NOTHING if rule.threshold is None else rule.threshold)
    return export(
        model, recipe.placement, data, out, recipe.passes, measure=recipe.measure, label=recipe.label,
        threshold=threshold, seed=recipe.seed, masks=recipe.masks, draws=recipe.draws, outputs=recipe.outputs,
        **options,
    )  # fmt: skip
