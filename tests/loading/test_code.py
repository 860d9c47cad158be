"""Code by name: what a callable returns, or one clear line; nothing is left behind."""

import sys

import pytest
import torch
from torch import nn

from dropscope.errors import MissingExtra
from dropscope.loading.names import MODEL_FORMS, LoadedModel, load_model
from dropscope.loading.sources import load_data
from support.errors import refused

NET = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

def data():
    return torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 1])
"""

PLAIN = LoadedModel("net.py:model", nn.Linear(4, 2))


def test_a_file_names_model_and_data(write):
    write("net.py", NET)
    model = load_model("net.py:model")
    x, y = load_data("net.py:data", model).dataset
    assert isinstance(model.module, nn.Sequential)
    assert x.shape == (5, 4)
    assert y.tolist() == [0, 1, 2, 0, 1]


def test_a_module_of_the_current_folder_is_importable(write):
    write("my_package_a/__init__.py", "")
    write("my_package_a/nets.py", NET)
    assert isinstance(load_model("my_package_a.nets:model").module, nn.Sequential)


def test_neighbours_are_importable_while_the_file_runs_and_the_path_is_restored(write):
    write("neighbour_b.py", "WIDTH = 7")
    write("late_b.py", "DEPTH = 2")
    write(
        "net.py",
        "from torch import nn\nimport neighbour_b\n"
        "def model():\n    import late_b\n    return nn.Linear(neighbour_b.WIDTH, late_b.DEPTH)",
    )
    before = list(sys.path)
    model = load_model("net.py:model").module
    assert (model.in_features, model.out_features) == (7, 2)
    assert sys.path == before


def test_a_file_runs_once_and_hides_no_installed_module(write):
    write("torch.py", "RUNS = []\nRUNS.append(1)\nfrom collections import Counter\n" + "def data():\n    return RUNS")
    assert load_data("torch.py:data", PLAIN).dataset is load_data("torch.py:data", PLAIN).dataset
    assert sys.modules["torch"] is torch


def test_what_a_file_prints_is_no_answer(write, capsys):
    write("net.py", "print('loading')\n" + NET)
    load_model("net.py:model")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "loading\n"


@pytest.mark.parametrize(
    ("name", "received", "remedy"),
    [
        ("nett.py:model", "nett.py", "did you mean 'net.py'"),
        ("net.py:modle", "modle", "did you mean 'model'?"),
        ("net.py", "net.py", "write net.py:callable"),
        ("net", "net", MODEL_FORMS),
        (":model", ":model", MODEL_FORMS),
        ("net.py:", "net.py:", MODEL_FORMS),
        ("no_such_module_c.nets:model", "no_such_module_c.nets", "check its spelling"),
        ("net.py:WIDTH", "int", "wrap it in a function without arguments"),
        ("net.py:instance", "Linear", "wrap it in a function without arguments"),
        ("net.py:needs", "needs(width)", "give every argument a default"),
        ("net.py:fails", "net.py:11: ZeroDivisionError: division by zero", "fix it there, until fails() runs"),
        ("net.py:leaves", "net.py:13: SystemExit: 3", "fix it there, until leaves() runs"),
        ("net.py:nothing", None, "end the function with a return"),
        ("net.py:weights", "OrderedDict", "return the model itself"),
        ("net.py:empty", "parameters on the device meta", "load its weights"),
        ("broken.py:model", "broken.py:2: SyntaxError: invalid syntax", "fix it there"),
        ("imports.py:model", "imports.py:1: ModuleNotFoundError: No module named 'no_such_module_d'", "fix it there"),
        ("weights.pt", "weights.pt", "write file.py:callable; `dropscope new torch`"),
        ("hf:", "hf:", "write hf:FOLDER or hf:NAME"),
    ],
)
def test_a_name_that_leads_nowhere_gets_one_clear_line(write, name, received, remedy):
    write(
        "net.py",
        "import sys\nfrom torch import nn\nWIDTH = 3\ninstance = nn.Linear(2, 2)\ndef model():\n    return instance\n"
        "def needs(width):\n    return instance\n"
        "def fails():\n    x = 0\n    return 1 / x\ndef leaves():\n    sys.exit(3)\n"
        "def nothing():\n    pass\ndef weights():\n    return instance.state_dict() | {}\n"
        "def empty():\n    return nn.Linear(2, 2, device='meta')\n",
    )
    write("broken.py", "import torch\ndef model(:\n")
    write("imports.py", "import no_such_module_d\n")
    before = list(sys.path)
    with refused("model") as caught:
        load_model(name)
    assert caught.value.received == received
    assert caught.value.remedy.startswith(remedy)
    assert "\n" not in str(caught.value)
    assert sys.path == before


def test_code_that_needs_an_extra_names_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "monai", None)
    write("net.py", "def model():\n    import monai\n")
    with refused("monai") as caught:
        load_model("net.py:model")
    assert isinstance(caught.value, MissingExtra)
    assert "dropscope[medical]" in str(caught.value)
