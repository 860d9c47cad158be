"""The package as a whole: its public names, what importing it needs, and what it leaves alone."""

import subprocess
import sys
from pathlib import Path

import pytest

import dropscope

PUBLIC = {
    "watch", "find_sites", "Site", "Placement", "injected", "audit", "sample", "uncertainty", "maps", "PlacementGrid",
    "PlacementSpace", "sweep", "plan_sweep", "Run", "compare", "tune", "UncertaintyPredictor", "measures", "scores",
    "rivals", "defer", "export", "open_export", "open_choice", "sweep_shard", "VolumePredictor", "Unfinished",
    "write_report", "score", "Scorer", "Scored",
    "open_run", "register_noise", "BadInput", "AuditFailed", "DropscopeError", "MissingExtra", "__version__",
    "load_data", "try_out", "score_continuations", "meta",
    "Audit", "Choice", "Comparison", "DeferralRule", "DriftCheck", "Evaluation", "Explanation", "Monitor",
    "Exported", "ExportFacts", "TunedChoice", "ShardResult", "Report",
    "Predictions", "Judgement", "LoadedData", "Noise", "PlanSummary", "Synthesis", "Watch",  # what they return
}  # fmt: skip
EXTRAS = ("transformers", "datasets", "monai", "nibabel", "onnx", "onnxruntime", "onnxscript", "ray")


def _python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_public_names_are_the_agreed_ones():
    assert set(dropscope.__all__) == PUBLIC
    assert dropscope.__all__ == sorted(dropscope.__all__, key=lambda name: (not name.isupper(), name))
    for name in dropscope.__all__:
        assert getattr(dropscope, name) is not None


def test_package_and_command_line_import_without_any_extra():
    blocked = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))"
    assert (
        _python(f"{blocked}\nimport dropscope, dropscope.cli; print(dropscope.__version__)").strip()
        == dropscope.__version__
    )


def test_importing_loads_no_extra_even_where_it_is_installed():
    code = f"import sys, dropscope, dropscope.cli; print([name for name in {EXTRAS} if name in sys.modules])"
    assert _python(code).strip() == "[]"


def test_importing_draws_no_random_numbers_and_sets_nothing():
    code = """
import random, numpy, torch
import rich.progress  # draws from Python's generator when it is imported, whoever imports it

def state():
    flags = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    return random.getstate(), torch.get_rng_state().tolist(), str(numpy.random.get_state()), flags

before = state()
import dropscope
assert state() == before
"""
    _python(code)


@pytest.mark.parametrize("line", (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines())
def test_a_constraint_pins_one_version(line):
    requirement = line.partition(";")[0].strip()
    assert not requirement or requirement.startswith("#") or "==" in requirement
