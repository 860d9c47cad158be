"""Pages of the site for the examples: each is run when the site is built, and shown with what it printed and drew.

An example that fails fails the build. What it printed is kept in `build/gallery` until the example or the library
changes. The list of examples is examples/README.md.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
KEPT = ROOT / "build" / "gallery"
SHOWN = ("cnn", "residual_net", "text_classifier", "named_entities", "monai_unet", "own_measure", "deferral")


def on_files(files: Any, config: Any) -> Any:
    for name in SHOWN:
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        printed, pictures = run(name, text)
        content = page(name, text, printed, [picture.name for picture in pictures])
        files.append(File.generated(config, f"examples/{name}.md", content=content))
        for picture in pictures:
            files.append(File.generated(config, f"examples/{picture.name}", abs_src_path=str(picture)))
    return files


def page(name: str, text: str, printed: str, pictures: list[str]) -> str:
    """One example: what it is, what it printed and drew, and its code."""
    tree = ast.parse(text)
    title, _, about = (ast.get_docstring(tree) or "").partition("\n\n")
    code = "".join(text.splitlines(keepends=True)[tree.body[0].end_lineno or 0 :]).lstrip("\n")
    drawn = "".join(f"\n![What {name}.py draws]({picture})\n" for picture in pictures)
    return (
        f"# {title.rstrip('.')}\n\n{about}\n\n```console\n$ python examples/{name}.py\n```\n\n"
        f"```text\n{printed}```\n{drawn}\n## The code\n\n```python\n{code}```\n"
    )


def run(name: str, text: str) -> tuple[str, list[Path]]:
    """What an example prints and the pictures it draws in an empty folder; kept ones are read."""
    folder = KEPT / name
    digest, said = _digest(text), folder / "printed.json"
    known = json.loads(said.read_text(encoding="utf-8")) if said.exists() else {}
    if known.get("digest") != digest:
        known = {"digest": digest, "printed": _run_afresh(name, folder)}
        said.write_text(json.dumps(known), encoding="utf-8")
    return known["printed"], sorted(folder.glob("*.png"))


def _digest(text: str) -> str:
    """Of what an example's output follows from: its text and the library."""
    digest = hashlib.sha256(text.encode())
    for source in sorted((ROOT / "src").rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _run_afresh(name: str, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    settings = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory(dir=KEPT) as empty:
        command = [sys.executable, str(EXAMPLES / f"{name}.py")]
        done = subprocess.run(command, cwd=empty, env=settings, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"examples/{name}.py failed:\n{done.stderr}")
        for picture in Path(empty).glob("*.png"):
            picture.replace(folder / picture.name)
    return done.stdout
