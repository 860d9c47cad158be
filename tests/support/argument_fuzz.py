"""Random argument lists for the command line, each tried in this process: it works, or says why not in one line.

In `tests`, `python -m support.argument_fuzz [count] [seed] [file]` tries so many, prints what went wrong, and writes
every list with its outcome to the file, as JSON lines. A list depends on the seed and its number alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from typer.main import get_command

from dropscope.cli import app
from support.argument_values import GOOD, INPUTS, NAMES, NET, STARTS, odd_placement, odd_value

_SECONDS = 60  # for one list
_MEMORY = 6 << 30  # bytes that a list may take beyond those the process has already
_LONGEST = 1000  # characters of an error
_OFTEN = {"try": 0.1, "sweep": 0.5, "predict": 0.7, "study": 0.6}  # how often a command is drawn, where not 1
_WIDTHS = (None, None, "80", "1", "0", "-3", "x", "40", "200")


# --- the folder that commands run in ----------------------------------------------------------------------------------


def make_folder(root: Path, *, checkpoint: bool = False) -> Path:
    """A folder with a model, data of every kind, and files that cannot be used. Below `root` all may be written to."""
    folder = root / "home" / "work"
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    (folder / "broken.py").write_text("def model(:\n")
    (folder / "t.csv").write_text("text,label,group\n" + "".join(f"w{i} w{i + 1},{i % 2},g\n" for i in range(8)))
    (folder / "t.jsonl").write_text("".join(json.dumps({"text": f"w{i}", "label": i % 2}) + "\n" for i in range(8)))
    (folder / "bytes.csv").write_bytes(bytes(range(256)))
    (folder / "nothing.csv").touch()
    (folder / "placements.txt").write_text("own # as trained\n1=0.5\n")
    (folder / "names.txt").write_text("a\nb\nc\n")
    (folder / "empty").mkdir()
    for name in ("images/a/1.png", "images/b/1.png", "images/c/1.png", "flat/1.png", "flat/2.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), len(name), np.uint8)).save(folder / name)
    (folder / "flat.csv").write_text("file,label\n1.png,0\n2.png,1\n")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling.csv").symlink_to("nowhere.csv")
    _write_volumes(folder)
    if checkpoint:
        from support.tiny_checkpoints import checkpoint as write_checkpoint
        from support.tiny_checkpoints import hellaswag, squad

        write_checkpoint(folder / "bert", "bert")
        squad(folder / "squad.json")
        hellaswag(folder / "hellaswag.jsonl")
    return folder


def _write_volumes(folder: Path) -> None:
    import nibabel

    for name, kind in (("volumes/v.nii.gz", np.float32), ("labels/v.nii.gz", np.uint8)):
        (folder / name).parent.mkdir()
        nibabel.save(nibabel.Nifti1Image(np.arange(60).reshape(5, 4, 3).astype(kind) % 3, np.eye(4)), folder / name)


@contextlib.contextmanager
def restored(root: Path) -> Iterator[None]:
    """Removes what is written below a folder meanwhile, and puts back what is changed."""
    before = {path: _state(path) for path in root.rglob("*")}
    kept = {path: path.read_bytes() for path in before if path.is_file() and path.stat().st_size < 1 << 16}
    try:
        yield
    finally:
        for path in sorted(set(root.rglob("*")) - before.keys(), key=lambda path: len(path.parts)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path, data in kept.items():
            if _state(path) != before[path]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


def _state(path: Path) -> object:
    with contextlib.suppress(OSError):
        status = path.lstat()
        return (status.st_mode, status.st_size, status.st_mtime_ns) if path.is_file() else status.st_mode
    return None


# --- argument lists ---------------------------------------------------------------------------------------------------


def argument_list(seed: int, number: int, *, checkpoint: bool = False) -> list[str]:
    """A command that is right or almost right. What would take long is only planned, with --dry-run."""
    draw = random.Random(f"{seed} {number}")
    starts = [start for start in STARTS if checkpoint or "bert" not in " ".join(start)]
    weights = [_OFTEN.get(start[0], 1.0) for start in starts]
    arguments = list(draw.choices(starts, weights)[0])
    fixed = _fixed(arguments)
    if draw.random() < 0.7 and arguments[0] not in ("study", "demo"):
        arguments.append("--dry-run")
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 6))):
        _change(arguments, fixed, draw)
    return arguments


def _fixed(arguments: list[str]) -> int:
    """How many arguments at the start stay: the command, and what keeps it short."""
    if "--dry-run" not in arguments:
        return 1
    return arguments.index("--dry-run") + 1 + ("--preset=smoke" in arguments)


def _change(arguments: list[str], fixed: int, draw: random.Random) -> None:
    known = [option for option in _options(arguments) if option.opts[0].startswith("--")]
    places = range(fixed, len(arguments))
    match draw.randrange(20):
        case 0 if places:
            arguments[draw.choice(places)] = odd_value(draw)
        case 1 if places:
            del arguments[draw.choice(places)]
        case 2 if places:
            arguments.insert(draw.choice(places), odd_value(draw))
        case 3 if places:
            arguments.append(arguments[draw.choice(places)])
        case 4:
            arguments.append(draw.choice((*known, *_any_option(draw))).opts[0])
        case 5:
            arguments += [draw.choice(_any_option(draw)).opts[0], odd_value(draw)]
        case 6 if known:
            arguments.append(f"{draw.choice(known).opts[0]}={odd_value(draw)}")
        case 7 | 8 | 9 if arguments[1:] and ":" in arguments[1]:
            arguments[1] = draw.choice(NAMES)
        case 10 | 11 if arguments[0] == "audit" and arguments[2:]:
            arguments[2] = odd_placement(draw)
        case _ if known:
            option = draw.choice(known)
            arguments.append(draw.choice([*option.opts, *option.secondary_opts]))
            if not option.is_flag:
                arguments.append(_value(option, draw))


def _value(option: Any, draw: random.Random) -> str:
    good = GOOD.get(option.opts[0])
    if good and draw.random() < 0.6:
        return draw.choice(good)
    if option.opts[0] in ("--placement", "--placements", "--sites") and draw.random() < 0.7:
        return odd_placement(draw)
    if option.opts[0] in INPUTS and draw.random() < 0.8:
        return draw.choice(INPUTS[option.opts[0]])
    return odd_value(draw)


def _options(arguments: list[str]) -> list[Any]:
    command = _command()
    for name in arguments[:2]:
        command = getattr(command, "commands", {}).get(name, command)
    return list(command.params)


def _any_option(draw: random.Random) -> list[Any]:
    command = _command()
    while hasattr(command, "commands"):
        command = draw.choice(list(command.commands.values()))
    return [option for option in command.params if option.opts[0].startswith("--")]


# --- trying them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of an argument list.

    Attributes:
        arguments: The list.
        code: The exit code; None where there is none.
        said: What stood on stderr.
        problem: What is wrong with that, or "".
        seconds: How long it took.
    """

    arguments: list[str]
    code: int | None
    said: str
    problem: str
    seconds: float


def outcome(arguments: list[str], width: str | None = None) -> Outcome:
    """What becomes of an argument list in the current folder."""
    started = time.monotonic()
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors, newline="") for errors in ("strict", "backslashreplace")
    )
    code, problem = 0, ""
    try:
        with _environment(width), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _command().main(list(arguments), prog_name="dropscope")
    except SystemExit as ending:
        code = ending.code
    except (Exception, _Hang) as error:
        code, problem = None, f"{type(error).__name__} {_place(error)}"
    answer, said = (_text(stream) for stream in (out, err))
    problem = problem or _problem(arguments, code, answer, said)
    return Outcome(arguments, code, said, problem, time.monotonic() - started)


@functools.cache
def _command() -> Any:
    return get_command(app)


@contextlib.contextmanager
def _environment(width: str | None) -> Iterator[None]:
    kept = dict(os.environ)
    os.environ |= {"HOME": str(Path.cwd().parent), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("COLUMNS", None)
    if width is not None:
        os.environ["COLUMNS"] = width
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= kept


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _problem(arguments: list[str], code: int, answer: str, said: str) -> str:
    lines = [line for line in said.split("\n") if line and not line.startswith("remark: ")]
    lines = [line for line in lines if not re.search(r"( …|: [\d.]+ (s|min))$", line)]  # what takes long
    if code == 2:
        if len(lines) != 1 or not lines[0].startswith("error: "):
            return f"{len(lines)} lines on stderr"
        if len(lines[0]) > _LONGEST:
            return "a long error"
        return "an answer beside the error" if answer else ""
    if code == 1:
        return "" if arguments[0] == "audit" or said.startswith("failed: ") else "exit code 1"
    if code != 0:
        return f"exit code {code}"
    if lines:
        return "lines on stderr beside an answer"
    if answer.startswith("{"):
        try:
            json.loads(answer, parse_constant=lambda word: json.loads(f"<{word}>"))
        except ValueError:
            return "no JSON"
    return ""


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}dropscope{os.sep}" in f.filename]
    return f"at {Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""


class _Hang(BaseException):
    pass


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Ends what takes too long; where that is deaf to signals, the process too."""

    def ring(*_: object) -> None:
        raise _Hang

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, 5)
    faulthandler.dump_traceback_later(_SECONDS + 20, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def try_many(count: int, seed: int, root: Path, *, checkpoint: bool = False, watch: bool = False) -> Iterator[Outcome]:
    """The outcome of each of `count` lists, in a folder below `root`.

    Args:
        count: How many.
        seed: Which.
        root: An empty folder.
        checkpoint: Whether a Hugging Face checkpoint is there too.
        watch: Whether to end what takes too long. It takes the alarm signal, which pytest has its own use for.
    """
    folder = make_folder(root, checkpoint=checkpoint)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number in range(count):
            with restored(root), _watched() if watch else contextlib.nullcontext():
                width = random.Random(f"width {seed} {number}").choice(_WIDTHS)
                yield outcome(argument_list(seed, number, checkpoint=checkpoint), width)
    finally:
        os.chdir(before)


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers  # noqa: F401 - before memory is limited

    torch.set_num_threads(1)
    count, seed, file = [*sys.argv[1:], *("1000", "0", os.devnull)[len(sys.argv) - 1 :]]
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
    found: dict[str, list[Outcome]] = {}
    codes: dict[int | None, int] = {}
    with tempfile.TemporaryDirectory() as root, open(file, "w") as log:
        for number, each in enumerate(try_many(int(count), int(seed), Path(root), checkpoint=True, watch=True)):
            print(json.dumps({"number": number, **asdict(each)}), file=log, flush=True)
            codes[each.code] = codes.get(each.code, 0) + 1
            if each.problem and each.problem not in found:
                print(f"{number}: {each.problem}: {each.arguments}\n{each.said[-2000:]}", flush=True)
            if each.problem:
                found.setdefault(each.problem, []).append(each)
    print(f"{count} lists, exit codes {codes}")
    for problem, outcomes in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(outcomes):>6}  {problem}")


if __name__ == "__main__":
    main()
