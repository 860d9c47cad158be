"""Exported models: one file that takes examples and their keys, runs the passes, and returns what they say.

Owns the files, ONNX and torch's .pt2, and what their graph returns. See `engine.PassesForward` for the passes in it.
Nothing else here knows ONNX.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Unpack

from dropscope.atomic import atomic_write
from dropscope.checks import check_choice, check_new_file, check_passes, finite_number
from dropscope.engine import CaptureFailed, PassesForward, SessionOptions, input_names, open_session, passes_forward
from dropscope.errors import BadInput, MissingExtra, Phrase, first_line
from dropscope.measures import Measure, resolve
from dropscope.model import Call
from dropscope.parameters import shares
from dropscope.placement import Placement, as_placement
from dropscope.statistics import PassStatistics

FORMS = (".onnx", ".pt2")
LABELS = ("plain", "mean")
KEYS = "examples"  # the input that holds them
OUTPUTS = ("probabilities", "plain_probabilities", "uncertainty", "label")
_FEW = 8  # examples that the file is tried on
_ALIKE = 1e-4  # largest difference between the file and the model on the examples given
_FACTS = "dropscope"
_EXTRA_FILE = "dropscope.json"
_LOUD = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "torch._inductor", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class ExportFacts:
    """What an exported file holds.

    Attributes:
        placement: Where its noise is.
        passes: How many passes it runs.
        measure: What its uncertainty is.
        label: Whether the "plain" pass or the "mean" of the passes decides the label.
        seed: Seed of the noise.
        draws: "independent" or "stratified".
        threshold: What is more uncertain is deferred; None where the file does not say.
        inputs: Name → shape of one example, behind the number of examples; the keys are not among them.
        classes: How many.
    """

    placement: str
    passes: int
    measure: str
    label: str
    seed: int
    draws: str
    threshold: float | None
    inputs: dict[str, list[int]]
    classes: int


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported file, ready to run on the CPU. It needs neither the model's code nor its weights.

    Attributes:
        path: The file.
        facts: What it holds.

    Examples:
        >>> import tempfile
        >>> net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = export(net, "last=0.5", torch.randn(3, 4), f"{folder}/net.pt2", passes=5)
        ...     found = file(torch.randn(7, 4))
        >>> sorted(found), found["probabilities"].shape
        (['label', 'plain_probabilities', 'probabilities', 'uncertainty'], (7, 3))
    """

    path: Path
    facts: ExportFacts
    _run: Callable[[list[Tensor]], list[Any]] = field(repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it returns."""
        return OUTPUTS if self.facts.threshold is None else (*OUTPUTS, "defer")

    def __call__(self, inputs: Any, ids: Any = None) -> dict[str, NDArray[Any]]:
        """What the file says of some examples.

        Args:
            inputs: What the model is called with: a tensor, a tuple or a dict of tensors.
            ids: A whole number per example, which its noise is a function of; None takes a fingerprint of its inputs,
                as `uncertainty` does.

        Returns:
            Name → values, one per example: "probabilities" (of the passes on average), "plain_probabilities",
            "uncertainty", "label" and, with a threshold, "defer".

        Raises:
            BadInput: For inputs of another kind or shape than the file takes.
        """
        call = Call.of(inputs)
        keys = call.keys() if ids is None else torch.as_tensor(ids, dtype=torch.int64)
        call = Call(call.args, dict(sorted(call.kwargs.items())))
        given = dict(zip(input_names(call), call.tensors, strict=True))
        wanted = {name: tuple(shape) for name, shape in self.facts.inputs.items()}
        received = {name: tuple(value.shape[1:]) for name, value in given.items()}
        if received != wanted:
            remedy = "pad texts to this length, and cut or resize others" if {*wanted} == {*received} else "name them so"
            what = f"inputs must be [N, *shape] with the shapes {wanted}"
            raise BadInput(what, "inputs", Phrase(f"{received}"), remedy)
        if len(keys) != call.examples:
            raise BadInput("ids must be one per example", "ids", Phrase(f"{len(keys)}"), "leave ids out")
        found = self._run([keys, *given.values()])
        return {name: np.asarray(value) for name, value in zip(self.outputs, found, strict=True)}


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

    The file takes the model's inputs and `examples`, int64 `[N]`: a key per example, which its noise is a function of. It
    returns `probabilities` (of the passes on average), `plain_probabilities`, `uncertainty` and `label`; with a
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
    target = check_new_file(str(out), "out", FORMS, overwrite=overwrite)
    check_passes(passes)
    check_choice(label, "label", LABELS)
    onnx = target.suffix == ".onnx"
    if onnx:
        _check_installed()
    if package and onnx:
        raise BadInput("package must be False for ONNX", "package", package, "write out='net.pt2'")
    if threshold is not None and finite_number(threshold) is None:
        raise BadInput("threshold must be a number", "threshold", threshold, "write threshold=rule.threshold")
    asked = as_placement("none" if placement is None else placement)
    row = _measure(measure, plain=asked.is_none)
    session = open_session(model, data, device="cpu", **options)
    session = session.with_data(session.data.part(range(min(session.data.batches[0].n, _FEW))))
    if length is not None:
        session = session.with_data(session.data.padded(length))
    (resolved,) = session.resolve([asked])
    if resolved:
        session.audit(resolved, asked)
    try:
        forward, inputs = passes_forward(session, resolved, passes if resolved else 1)
    except CaptureFailed as error:
        what = "model must be one whose passes a graph can hold"
        raise BadInput(what, "model", Phrase(str(error)), "choose another placement, or change that part") from error
    call = session.data.batches[0].call
    facts = ExportFacts(
        str(asked), passes if resolved else 1, row.name, label, session.seed, session.draws, threshold,
        dict(zip(input_names(call), ([*value.shape[1:]] for value in inputs), strict=True)), session.classes,
    )  # fmt: skip
    whole = _Whole(forward, row, facts).eval()
    given = [session.data.batches[0].keys, *inputs]
    with torch.no_grad(), _quiet():
        expected = [np.asarray(value) for value in whole(*given)]  # first: what is cached must not be made in a graph
        program = _program(whole, given, facts)
        write = _write_onnx if onnx else (_write_package if package else _write_program)
        atomic_write(target, lambda part: write(program, part, facts))
    made = open_export(target)
    try:
        _check_alike(made, given, expected)
    except BadInput:
        target.unlink()
        raise
    return made


def open_export(path: str | Path) -> Exported:
    """Opens a file that `export` wrote.

    Args:
        path: The file.

    Returns:
        The file, ready to run.

    Raises:
        BadInput: If it is missing, damaged, or another's.
        MissingExtra: For .onnx without the packages of `dropscope[export]`.
    """
    file = Path(path)
    if file.suffix not in FORMS or not file.is_file():
        raise BadInput("path must be a file that export wrote", "path", str(path), "check the name")
    try:
        text, run = _open_onnx(file) if file.suffix == ".onnx" else _open_pt2(file)
        facts = ExportFacts(**json.loads(text))
    except BadInput:
        raise
    except Exception as error:  # of onnxruntime, of protobuf, of torch
        remedy = "export the model again"
        raise BadInput("path must be a file that export wrote", "path", Phrase(first_line(error)), remedy) from error
    return Exported(file, facts, run)


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
        return found if self._facts.threshold is None else (*found, value.double() > self._facts.threshold)

    def _uncertainty(self, plain: Tensor, passes: Tensor) -> Tensor:
        row = self._row
        if row.of != "statistics":
            return row.function(plain if row.of == "plain" else passes)
        kept = PassStatistics({"sum_p", *row.needs}, plain.movedim(1, -1))
        kept.update(passes.movedim(2, -1), passes_dim=0, check=False)
        return row.function(kept)


def _names(facts: ExportFacts) -> list[str]:
    return [*OUTPUTS, *([] if facts.threshold is None else ["defer"])]


def _measure(measure: Any, *, plain: bool) -> Measure:
    (row,) = resolve(measure or ("plain_max_probability" if plain else "predictive_entropy"))
    if plain and row.of != "plain":
        what = "measure must be of the plain pass where there is no noise"
        raise BadInput(what, "measure", row.name, "write measure='plain_entropy', or give a placement")
    if "histogram" in row.needs:
        what = "measure must be one that a graph can hold, and histograms are counted outside of it"
        raise BadInput(what, "measure", row.name, "write measure='predictive_entropy', or 'averaged_variance'")
    return row


def _program(whole: _Whole, given: list[Tensor], facts: ExportFacts) -> torch.export.ExportedProgram:
    """The graph for any number of examples."""
    several = [_twice(value) for value in given]
    number = torch.export.Dim("N", min=1, max=1 << 20)
    shapes = ({0: number}, tuple({0: number} for _ in several[1:]))
    try:
        return torch.export.export(whole, tuple(several), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        remedy = "choose another measure, noise or placement"
        what = f"model with the measure {facts.measure!r} must be one that torch.export takes"
        raise BadInput(what, "model", Phrase(first_line(error)), remedy) from error


def _twice(value: Tensor) -> Tensor:
    """At least two examples: one alone would be taken for a constant."""
    return torch.cat([value, value]) if len(value) == 1 else value


def _check_alike(made: Exported, given: list[Tensor], expected: list[NDArray[Any]]) -> None:
    found = [np.asarray(value) for value in made._run(given)]
    apart = max(float(np.abs(a - b).max()) for a, b in zip(found[:3], expected[:3], strict=True))
    if not apart <= _ALIKE:
        got = Phrase(f"probabilities or uncertainties that are {apart:.1e} away")
        raise BadInput("the file must say what the model says", "model", got, "write the other form, .onnx or .pt2")


# --- files ------------------------------------------------------------------------------------------------------------


def _check_installed() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtra("ONNX", package, "export") from error


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
    names = [KEYS, *facts.inputs]
    try:
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=_names(facts), verbose=False, optimize=True
        )
    except Exception as error:
        cause = error.__cause__ or error
        what, remedy = "model must be one whose operations ONNX has", "write out='net.pt2'"
        raise BadInput(what, "model", Phrase(first_line(cause)), remedy) from error
    assert made is not None
    made.model.metadata_props[_FACTS] = json.dumps(asdict(facts))
    made.save(path)


def _write_program(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
    torch.export.save(program, path, extra_files={_EXTRA_FILE: json.dumps(asdict(facts))})


def _write_package(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
    from torch import _inductor

    try:
        metadata = {_FACTS: json.dumps(asdict(facts))}
        _inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs={"aot_inductor.metadata": metadata}
        )
    except Exception as error:
        what = "package must be False where the graph does not compile"
        raise BadInput(what, "package", Phrase(first_line(error)), "leave package=True out") from error


def _open_onnx(path: Path) -> tuple[str, Callable[[list[Tensor]], list[Any]]]:
    _check_installed()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    facts = session.get_modelmeta().custom_metadata_map.get(_FACTS, "")
    return facts, lambda given: session.run(
        None, {name: value.numpy() for name, value in zip(names, given, strict=True)}
    )


def _open_pt2(path: Path) -> tuple[str, Callable[[list[Tensor]], list[Any]]]:
    if _is_package(path):
        from torch import _inductor

        package = _inductor.aoti_load_package(str(path))
        return package.get_metadata()[_FACTS], lambda given: list(package(*given))
    extra = {_EXTRA_FILE: ""}
    with _quiet():
        module = torch.export.load(path, extra_files=extra).module()

    def run(given: list[Tensor]) -> list[Any]:
        with torch.no_grad():
            return list(module(*given))

    return extra[_EXTRA_FILE], run


def _is_package(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any("aotinductor" in name for name in archive.namelist())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch and onnxscript tell developers of theirs what they do."""
    levels = [(log, log.level) for log in map(logging.getLogger, _LOUD)]
    try:
        for log, _ in levels:
            log.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels:
            log.setLevel(level)
