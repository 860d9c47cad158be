"""Files of exported models, ONNX and torch's .pt2: how they are written, opened and run, and what they hold.

Nothing else knows ONNX. See `exports` for the graph that is written.
"""

from __future__ import annotations

import contextlib
import io
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

from dropscope.engine import feed_values, input_names
from dropscope.errors import BadInput, MissingExtra, Phrase, first_line
from dropscope.loading import check_archive
from dropscope.model import Call

FORMS = (".onnx", ".pt2")
KEYS = "examples"  # the input that holds them
OUTPUTS = ("probabilities", "plain_probabilities", "uncertainty", "label")
_ONE_FILE = 1_800_000_000  # bytes of weights: a file of protobuf holds 2 GB
_FACTS = "dropscope"
_EXTRA_FILE = "dropscope.json"
_PLAIN = ("weight_", "tensor_")  # files in a .pt2 that are tensors, byte for byte
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

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it returns."""
        return OUTPUTS if self.threshold is None else (*OUTPUTS, "defer")


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported file, ready to run on the CPU. It needs neither the model's code nor its weights.

    Attributes:
        path: The file.
        facts: What it holds.
        run: The graph itself, from tensors to values in the order of `outputs`: the keys, then each input.

    Examples:
        >>> import tempfile
        >>> from dropscope import export
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = export(net, "last=0.5", torch.randn(3, 4), f"{folder}/net.pt2", passes=5)
        ...     found = file(torch.randn(7, 4))
        >>> sorted(found), found["probabilities"].shape
        (['label', 'plain_probabilities', 'probabilities', 'uncertainty'], (7, 3))
    """

    path: Path
    facts: ExportFacts
    run: Callable[[list[Tensor]], list[Any]] = field(repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it returns."""
        return self.facts.outputs

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
        given = dict(zip(input_names(call), feed_values(call), strict=True))
        wanted = {name: tuple(shape) for name, shape in self.facts.inputs.items()}
        received = {name: tuple(value.shape[1:]) for name, value in given.items()}
        if received != wanted:
            same = {*wanted} == {*received}
            remedy = "pad texts to this length, cut or resize others" if same else "pass the same inputs by these names"
            what = f"inputs must be [N, *shape] with the shapes {wanted}"
            raise BadInput(what, "inputs", Phrase(f"{received}"), remedy)
        if len(keys) != call.examples:
            raise BadInput("ids must be one per example", "ids", Phrase(f"{len(keys)}"), "leave ids out")
        found = self.run([keys, *given.values()])
        return {name: np.asarray(value) for name, value in zip(self.outputs, found, strict=True)}


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


def check_installed() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtra("ONNX", package, "export") from error


def check_size(model: nn.Module) -> None:
    """Refuses weights that ONNX would keep in a second file."""
    size = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
    if size > _ONE_FILE:
        what, remedy = "model must have less than 1.8 GB of weights for ONNX", "write out='net.pt2'"
        raise BadInput(what, "model", Phrase(f"{size / 1e9:.1f} GB"), remedy)


def write_onnx(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
    names = [KEYS, *facts.inputs]
    try:
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=list(facts.outputs), verbose=False, optimize=True
        )
    except Exception as error:
        cause = error.__cause__ or error
        what, remedy = "model must be one whose operations ONNX has", "write out='net.pt2'"
        raise BadInput(what, "model", Phrase(first_line(cause)), remedy) from error
    assert made is not None
    made.model.metadata_props[_FACTS] = json.dumps(asdict(facts))
    made.save(path)


def write_program(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
    torch.export.save(program, path, extra_files={_EXTRA_FILE: json.dumps(asdict(facts))})


def write_package(program: torch.export.ExportedProgram, path: Path, facts: ExportFacts) -> None:
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
    check_installed()
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
    _check_pickles(path)
    with quiet():
        module = torch.export.load(path, extra_files=extra).module()

    def run(given: list[Tensor]) -> list[Any]:
        with torch.no_grad():
            return list(module(*given))

    return extra[_EXTRA_FILE], run


def _is_package(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any("aotinductor" in name for name in archive.namelist())


def _check_pickles(path: Path) -> None:
    """Refuses a program whose tensors are not plain: torch.export would unpickle them, and run what they name.

    Raises:
        ValueError: Where it holds such.
    """
    check_archive(path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".pt"):  # torch.export falls back to unpickling where this fails
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
            elif name.endswith("_config.json"):
                entries = json.loads(archive.read(name))["config"].values()
                if any(entry["use_pickle"] or not entry["path_name"].startswith(_PLAIN) for entry in entries):
                    raise ValueError("pickled objects, which may run code")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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
