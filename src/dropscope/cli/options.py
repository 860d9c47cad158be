"""Options of the commands: those that several share, and records whose every field is an option.

A command whose parameter is a dataclass, such as `source: DataOptions` or a study's `options: Options`, is decorated
with `takes_records`: it gets an option for each field, with the field's name, type and default and the text of the
docstring's "Attributes:" as its help, and receives the record.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from dropscope.checks import check_checkpoint
from dropscope.cli.console import stderr
from dropscope.cli.flags import Flag, spell
from dropscope.errors import BadInput
from dropscope.parameters import entries

if TYPE_CHECKING:
    from dropscope.loading import LoadedData, LoadedModel

Command = Callable[..., None]
Number = TypeVar("Number", int, float)

_BESIDE = 14  # characters of choices that stand beside an option
_FOR_PYTHON = ("progress",)  # a command decides by the terminal


def in_words(text: str, kind: Any) -> dict[str, Any]:
    """The help and the metavar of an option.

    Many choices stand in the help, where lines break between words; a few stand beside the option.

    >>> in_words("How.", Literal["on", "off"]), in_words("Which.", Literal["predictive_entropy", "averaged_variance"])
    ({'help': 'How.'}, {'help': 'Which. One of predictive_entropy, averaged_variance.', 'metavar': '<choice>'})
    """
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if len("|".join(choices)) <= _BESIDE:
        return {"help": text}
    return {"help": f"{text} One of {', '.join(choices)}.", "metavar": "<choice>"}


def _check_model(name: str | None) -> str | None:
    """The name of a model; a folder that is not there is reported before torch is imported."""
    if name is not None and name.startswith("hf:"):
        check_checkpoint(name.removeprefix("hf:"))
    return name


# --- options that several commands share ------------------------------------------------------------------------------

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The model: file.py:callable or package.module:callable, which is run, or hf:CHECKPOINT.",
        callback=_check_model,
    ),
]
PlacementText = Annotated[
    str,
    typer.Argument(
        metavar="PLACEMENT", help="Where noise goes: 'last=0.5', 'conv2=0.3,fc1=0.5', 'own' or 'attention=0.1'."
    ),
]
Passes = Annotated[int, typer.Option(help="Passes per placement.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
_Draws = Literal["independent", "stratified"]
Draws = Annotated[
    _Draws, typer.Option(**in_words("How passes are drawn: stratified ones have more exact means.", _Draws))
]
_Engine = Literal["auto", "shared", "loop", "analytic"]
EngineName = Annotated[
    _Engine,
    typer.Option(**in_words("What runs; analytic needs no passes for noise just before the last layer.", _Engine)),
]
Measures = Annotated[str | None, typer.Option(help="Measures, comma-separated. Default: the usual ones of the task.")]
LabelRule = Annotated[
    Literal["mean", "plain"], typer.Option(help="What predicts the label: the averaged passes, or one plain pass.")
]
_Outputs = Literal["logits", "probabilities", "binary_logit", "multilabel_logits"]
Outputs = Annotated[_Outputs, typer.Option(**in_words("What the model returns.", _Outputs))]
_Objective = Literal[
    "isotonic_penalty", "rearrangement_penalty", "running_minimum_penalty", "aurc", "excess_aurc", "augrc",
    "error_auroc", "error_auprc", "ece", "brier", "nll",
]  # fmt: skip
Objective = Annotated[_Objective, typer.Option(**in_words("Score that chooses the best rows.", _Objective))]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: the device of the model.")]
Memory = Annotated[str, typer.Option(help="Memory budget, such as 4GiB.")]
RunFolder = Annotated[
    str | None, typer.Option(help="Folder or address (s3://…) of the run. An interrupted run resumes from it.")
]
ShardText = Annotated[
    str | None,
    typer.Option(metavar="K/N", help="Run one share of N, from 1/N to N/N, into the --out that all shares see."),
]
Workers = Annotated[
    int | None, typer.Option(help="Processes that run the passes; with --cluster, how many at once at most.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Ray cluster that runs the passes: auto, or ray://host:10001."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan, without running it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PredictorFolder = Annotated[
    str | None, typer.Option(help="Folder for a predictor of what was chosen, for dropscope predict.")
]
MaxError = Annotated[float, typer.Option(help="Of the predictor: error among the kept, at most.")]


@dataclass(frozen=True)
class DataOptions:
    """Where the data of a command comes from. Every command that reads data takes this record.

    This is the one place for options of data: a field added here, with its line below, is an option of all those
    commands, and reaches `loading.open_data` as an argument of the same name.

    Attributes:
        data: The data: file.py:callable, a .csv, .jsonl or .parquet of texts, or an image folder with a sub-folder per
            class, with a table of labels, or without labels.
        keys: Of dicts: the fields of the input and the label, such as image,label.
        tokenizer: Checkpoint whose tokenizer reads the texts. Default: the model's own.
        text_column: Column of the texts in a table. Default: 'text'.
        label_column: Column of the labels in a table. Default: 'label', if present.
        labels: Table of an image folder, with columns file and label. Default: labels.csv in the folder.
        image_size: Resize images: one side, or HEIGHTxWIDTH.
        mean: Subtracted from pixels in [0, 1]: one number, one per channel, imagenet or cifar10.
        std: What pixels are divided by after that. Default: that of the data set that `mean` names.
        transforms: From a PIL image to a tensor: file.py:callable, in place of `image_size`, `mean` and `std`.
        class_names: In the order of the model's outputs, comma-separated, or a file with one per line.
    """

    data: str
    keys: Sequence[str] | None = None
    tokenizer: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    labels: str | None = None
    image_size: str | None = None
    mean: str | None = None
    std: str | None = None
    transforms: str | None = None
    class_names: str | None = None

    def open(self, *, labelled: bool = True) -> Callable[[LoadedModel], LoadedData]:
        """The data short of what depends on the model; what needs no labels leaves them unread.

        What it returns loads the rest, with its remarks on stderr.
        """
        from dropscope.loading import open_data

        options = asdict(self)
        opened = open_data(options.pop("data"), labelled=labelled, **options)

        def load(model: LoadedModel) -> LoadedData:
            loaded = opened(model)
            for remark in loaded.remarks:
                stderr().print(f"remark: {spell(remark, {name: Flag(_flag(name)) for name in options})}")
            return loaded

        return load


@dataclass(frozen=True)
class PassOptions:
    """How the passes of a command are drawn, run and read; the fields are arguments of the library by the same names.

    Attributes:
        seed: Seed of the noise.
        draws: How passes are drawn: stratified ones have more exact means.
        outputs: What the model returns.
        device: cpu or cuda. Default: the device of the model.
        precision: Of passes; tf32 and bf16 are faster on a GPU, and less exact.
    """

    seed: int = 0
    draws: _Draws = "independent"
    outputs: _Outputs = "logits"
    device: str | None = None
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"


@dataclass(frozen=True)
class GoalOptions:
    """When an example has had enough passes, for --passes auto; the fields are arguments of `uncertainty`.

    Attributes:
        tolerance: With --passes auto: the largest Monte Carlo error of the measure. Default without a goal: 0.01.
        threshold: With --passes auto: defer examples whose measure is above it.
        defer: With --passes auto: defer this share of the examples, the most uncertain, such as 0.1.
        error_rate: With --passes auto: how often an example that is settled may be on the wrong side.
        at_most: With --passes auto: passes of an example. Default: 48 where examples are deferred, else 512.
    """

    tolerance: float | None = None
    threshold: float | None = None
    defer: float | None = None
    error_rate: float = 0.1
    at_most: int | None = None


# --- lists ------------------------------------------------------------------------------------------------------------


def words(text: str) -> tuple[str, ...]:
    """The comma-separated values of an option, without the blanks around them.

    >>> words("conv2, fc1,")
    ('conv2', 'fc1')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, kind: type[Number], option: str) -> tuple[Number, ...]:
    """The comma-separated numbers of an option; `kind` is int for whole numbers.

    >>> numbers("0.1,0.5", float, "--rates"), numbers("5,15", int, "--n-train"), numbers("128x128", int, "--roi")
    ((0.1, 0.5), (5, 15), (128, 128))
    """
    try:  # sides may be joined by x too, as elsewhere
        return tuple(kind(part) for part in words(re.sub("[x×]", ",", text) if kind is int else text))
    except ValueError as error:
        noun, example = ("whole numbers", "5,15") if kind is int else ("numbers", "0.1,0.5")
        what = f"{option} must hold {noun}, comma-separated"
        raise BadInput(what, option, text, f"write {option} {example}") from error


# --- records ----------------------------------------------------------------------------------------------------------


def takes_records(**flags: str) -> Callable[[Command], Command]:
    """Decorates a command: each parameter that is a dataclass becomes one option per field.

    A field that the command has as a parameter of its own is left to the command, and keeps its default in the record.

    Args:
        **flags: Field → flag, for fields whose flag is not their name.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters
        records: dict[str, dict[str, _Field]] = {}
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.items():
            if is_dataclass(hints[name]):
                records[name] = _fields(hints[name], flags, without=(*own, *_FOR_PYTHON))
                parameters += [field.parameter for field in records[name].values()]
            else:
                parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def call(**given: Any) -> None:
            for name, record in records.items():
                given[name] = hints[name](**{field: record[field].value(given.pop(field)) for field in record})
            command(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


@dataclass(frozen=True)
class _Field:
    """A field of a record at the command line: its option, and how the option's value becomes the field's."""

    parameter: inspect.Parameter
    flag: str
    items: type | None  # of a sequence, which is written with commas

    def value(self, given: Any) -> Any:
        if given is None or self.items is None:
            return given
        return words(given) if self.items is str else numbers(given, self.items, self.flag)


def _fields(record: Any, flags: Mapping[str, str], without: Sequence[str]) -> dict[str, _Field]:
    hints, texts = get_type_hints(record), entries(record.__doc__ or "", "Attributes")
    listed = [field for field in fields(record) if field.name not in without]
    spelled = {field.name: flags.get(field.name, _flag(field.name)) for field in listed}
    found = {}
    for field in listed:
        name, default = field.name, field.default
        kind, items = _kind(hints[name])
        decl = f"{spelled[name]}/--no-{spelled[name][2:]}" if default is True else spelled[name]
        shown = in_words(_help(texts.get(name, ""), spelled), kind)
        if items is not None:
            shown["metavar"] = f"<{items.__name__},…>"
        if default is None:
            kind = kind | None
        elif items is not None and default is not MISSING:
            default = ",".join(map(str, default))
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[kind, typer.Option(decl, **shown)],
        )
        found[name] = _Field(parameter, spelled[name], items)
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind(hint: Any) -> tuple[Any, type | None]:
    """What an option holds, and of what its items are where it is a list: a path and a list are written as texts."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (kind,) = (member for member in members if member not in (NoneType, Path))
    return (str, get_args(kind)[0]) if get_origin(kind) in (Sequence, tuple) else (kind, None)


def _help(text: str, flags: Mapping[str, str]) -> str:
    """The text of an attribute, on one line, with the fields it names as flags."""
    named = re.sub(r"`(\w+)`", lambda name: flags.get(name[1], name[1]), text)
    return " ".join(named.split())
