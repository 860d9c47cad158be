"""Broken checkpoints tried one by one, each in a process of its own with little memory and little time.

In `tests`, `python -m support.checkpoint_fuzz [random changes per file] [part of a name|another …]` prints what became
of each.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.broken_checkpoints import (
    BROKEN,
    BROKEN_TOKENIZERS,
    Breakage,
    header,
    make_checkpoint,
    read_json,
    write_bytes,
)

_MEMORY = 1 << 30  # bytes that a load may take beyond those the process has already
_SECONDS = 20


def random_breakages(count: int, seed: int = 0) -> Iterator[tuple[str, Breakage]]:
    """Random changes of bytes, and of values in JSON."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        for number in range(count):
            draw = random.Random(f"{seed} {name} {number}")
            yield f"random {name} {number}", _random_bytes(name, draw) if number % 2 else _random_value(name, draw)


def _random_bytes(name: str, draw: random.Random) -> Breakage:
    def apply(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        for _ in range(draw.randint(1, 4)):
            # The header of the weights is the part that is not numbers.
            where = draw.randrange(min(len(data), 3000))
            match draw.randrange(3):
                case 0:
                    data[where] = draw.randrange(256)
                case 1:
                    del data[where : where + draw.randint(1, 50)]
                case _:
                    data[where:where] = draw.randbytes(draw.randint(1, 8))
        write_bytes(folder / name, bytes(data))

    return apply


_VALUES = (None, True, -1, 0, 1, 3.5, 10**9, 10**19, "", "x", [], [1], {}, {"a": 1}, "../../x", float("nan"))


def _random_value(name: str, draw: random.Random) -> Breakage:
    def change(root: Any) -> None:
        places = [(holder, key) for holder, key in _places(root)]
        for holder, key in draw.sample(places, min(len(places), draw.randint(1, 2))):
            holder[key] = draw.choice(_VALUES)

    def apply(folder: Path) -> None:
        if name == "model.safetensors":
            header(lambda head: change(head))(folder)
            return
        value = read_json(folder / name)
        change(value)
        write_bytes(folder / name, json.dumps(value).encode())

    return apply


def _places(root: Any) -> Iterator[tuple[Any, Any]]:
    keys = root.keys() if isinstance(root, dict) else range(len(root)) if isinstance(root, list) else ()
    for key in list(keys):
        yield root, key
        yield from _places(root[key])


# --- trying them ------------------------------------------------------------------------------------------------------


def outcome(folder: Path) -> str:
    """What loading a checkpoint comes to: "loads", "refused: …" or what went wrong; in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(_SECONDS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writer, _load(folder).encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "hangs" if os.WTERMSIG(status) == signal.SIGALRM else f"dies of signal {os.WTERMSIG(status)}"
    return "code ran" if (folder / "code-ran").exists() else said


def _load(folder: Path) -> str:
    import torch

    from dropscope.errors import BadInput
    from dropscope.loading import huggingface
    from dropscope.loading.names import load_model

    try:
        model: Any = load_model(f"hf:{folder}")
        checkpoint = huggingface.read_checkpoint(str(folder), local=True)
        tokens = checkpoint.tokenizer(["a fine film", "awful"], padding=True, return_tensors="pt")
        with torch.no_grad():
            model.module(**tokens)
    except BadInput as error:
        return f"refused: {error}"
    except BaseException as error:
        import traceback

        places = [f for f in traceback.extract_tb(error.__traceback__) if "dropscope" in f.filename]
        place = f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
        return f"{type(error).__name__}: {str(error)[:200]} at {place}"
    return "loads " + "; ".join(model.remarks)[:100]


def try_all(cases: dict[str, Breakage], show: Callable[[str, str], None] | None = None) -> dict[str, str]:
    """The outcome of each."""
    found = {}
    with tempfile.TemporaryDirectory() as kept:
        sound = make_checkpoint(Path(kept) / "sound")
        for number, (name, breakage) in enumerate(cases.items()):
            folder = Path(kept) / str(number)
            shutil.copytree(sound, folder)
            breakage(folder)
            found[name] = outcome(folder)
            if show is not None:
                show(name, found[name])
            shutil.rmtree(folder)
    return found


def main() -> None:
    import transformers  # noqa: F401 - once, before the processes part

    import dropscope.loading.names  # noqa: F401

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    chosen = {**BROKEN, **BROKEN_TOKENIZERS, **dict(random_breakages(count))}
    if len(sys.argv) > 2:
        chosen = {name: do for name, do in chosen.items() if any(part in name for part in sys.argv[2].split("|"))}
    found = try_all(chosen, lambda name, said: print(f"{name:<45} {said}", flush=True))
    kinds = [said.split(":")[0].split()[0] for said in found.values()]
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))})


if __name__ == "__main__":
    main()
