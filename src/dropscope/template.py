"""The file that `dropscope new` writes: a model and data by name, to run as it is and then to make one's own.

Owns writing it, never over anything. The texts lie in `templates/`.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from dropscope.errors import BadInput

DEFAULT = "my_model.py"


def template(framework: str, file: str = DEFAULT) -> str:
    """The text for `framework` (torch, hf, monai), whose commands name `file`."""
    text = resources.files("dropscope").joinpath("templates", f"{framework}.py.txt").read_text(encoding="utf-8")
    return text.replace(DEFAULT, file)


def check_target(file: str) -> Path:
    """The path to write, or the error that says why nothing is written there."""
    path = Path(file)
    if path.suffix != ".py":
        raise BadInput("a template is a Python file", "FILE", file, f"write {path.stem or 'my_model'}.py")
    if path.exists():
        raise BadInput("a file that exists is never overwritten", "FILE", file, "choose another name, or move it away")
    if not path.parent.is_dir():
        raise BadInput("a file is written into a folder that exists", "FILE", file, f"make {path.parent} first")
    return path


def write_template(framework: str, file: str = DEFAULT) -> Path:
    """Writes the template to a new file."""
    path = check_target(file)
    with path.open("x", encoding="utf-8") as new:
        new.write(template(framework, file))
    return path
