"""Commands: answers on stdout, one message on stderr, the right exit code, no files except those asked for."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import dropscope
from dropscope.cli import app
from dropscope.errors import BadInput

TOY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.fc1 = nn.Linear(8 * 16, 32)
        self.unused = nn.Dropout(0.3)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = self.act(self.norm(self.conv1(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)

def model():
    torch.manual_seed(0)
    return Net().eval()

def cut_off():
    net = model()
    nn.init.zeros_(net.fc2.weight)
    return net

def fails():
    raise RuntimeError("no weights\\nhere")

def data():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(16, 1, 4, 4, generator=generator), torch.arange(16) % 3

def wrong():
    return torch.zeros(4, 7), torch.zeros(4)

def coloured():
    return torch.zeros(4, 3, 4, 4), torch.zeros(4)

def by_key():
    x, y = data()
    return [{"image": image, "label": label} for image, label in zip(x.split(8), y.split(8))]

def badly_labelled():
    return data()[0], ["cat"] * 16

def scaled(image):
    import numpy
    return torch.from_numpy(numpy.array(image, dtype="float32"))[None] / 99

class Divides(Net):
    def forward(self, x):
        return super().forward(x) * (1 // (len(x) - len(x)))

def divides():
    return Divides()

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.more, self.head = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.more(torch.relu(self.linear(x.flatten(1))))))

def named():
    return Named().eval()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in a folder that holds `toy.py`, and checks that it leaves nothing else there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("dropscope.progress._QUIET_SECONDS", 3600.0)  # however slow this machine is
    (tmp_path / "toy.py").write_text(TOY)

    def run(*arguments: str, code: int = 0, wrote: tuple[str, ...] = ()):
        before = {path.name for path in tmp_path.iterdir()}
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        assert {path.name for path in tmp_path.iterdir()} == before | set(wrote)
        return result

    return run


def refusal(result) -> BadInput:
    """The error behind a message and exit code 2."""
    error = result.exception
    while error is not None and not isinstance(error, BadInput):
        error = error.__cause__ or error.__context__
    assert isinstance(error, BadInput), result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    return error


TOY_DATA = ("--data", "toy.py:data")


def test_version_and_help(run):
    assert run("--version").stdout.strip() == f"dropscope {dropscope.__version__}"
    for command in ("sites", "audit", "new"):
        assert command in run("--help").stdout
        assert "--json" in run(command, "--help").stdout


NOISE = """
import dropscope

@dropscope.register_noise
def commands_noise(uniforms, rate):
    return 1 + (2 * uniforms - 1) * (3 * rate / (1 - rate)) ** 0.5
"""


def test_noise_that_the_code_of_the_model_registers_has_its_name_on_the_command_line(run, tmp_path):
    (tmp_path / "noisy.py").write_text(TOY + NOISE)
    audited = run("audit", "noisy.py:model", "fc1=0.3 noise=commands_noise", "--data", "noisy.py:data")
    assert "commands_noise" in audited.stdout
    swept = run(
        "sweep", "noisy.py:model", "--data", "noisy.py:data", "--sites", "fc1", "--rates", "0.3", "--noise",
        "commands_noise,gaussian", "--passes", "3", "--objective", "nll", "--json",
    )  # fmt: skip
    best = json.loads(swept.stdout)["best"]
    assert {row["placement"] for row in best} == {"fc1=0.3 noise=commands_noise", "fc1=0.3 noise=gaussian"}
    assert all(row["nll"] > 0 for row in best)
    error = refusal(run("audit", "noisy.py:model", "fc1=0.3 noise=zigzag", "--data", "noisy.py:data", code=2))
    assert error.name == "noise"


def test_sites_shows_layers_and_says_what_it_hides(run):
    result = run("sites", "toy.py:model", *TOY_DATA)
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["conv1", "fc1", "fc2"]
    assert "8×4×4" in lines[1]
    assert "hidden: 1 of kind norm, 1 of kind activation (--all shows them)" in result.stdout
    assert "remark: unused is a dropout that is never called" in result.stdout
    assert all(len(line) <= 120 for line in lines)
    assert "norm" in [line.split()[0] for line in run("sites", "toy.py:model", *TOY_DATA, "--all").stdout.splitlines()]


def test_sites_in_a_narrow_terminal_breaks_no_name(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    result = run("sites", "toy.py:model", *TOY_DATA)
    assert [line.split() for line in result.stdout.splitlines()[:3]] == [
        ["site", "kind"],
        ["conv1", "conv"],
        ["fc1", "linear"],
    ]
    assert "not shown in 30 columns" in result.stdout


def test_sites_as_json_holds_every_site(run):
    answer = json.loads(run("sites", "toy.py:model", *TOY_DATA, "--json").stdout)
    found = {site["name"]: site for site in answer["sites"]}
    assert set(found) == {"conv1", "norm", "act", "fc1", "fc2"}
    assert found["conv1"]["positions"][0] == "after_activation"
    assert answer["never_called"] == ["unused"]


def test_a_dry_run_only_says_what_would_run(run):
    result = run("sites", "toy.py:model", *TOY_DATA, "--dry-run")
    assert result.stdout.splitlines() == ["model: toy.py:model (Net, 4,323 parameters)", "input 0: [8, 1, 4, 4]"]
    result = run("audit", "toy.py:model", "fc1=0.5,conv1@output=.2", *TOY_DATA, "--dry-run")
    assert "noise at conv1@output: bernoulli, rate 0.2" in result.stdout
    answer = json.loads(run("audit", "toy.py:model", "fc1=0.5", *TOY_DATA, "--dry-run", "--json").stdout)
    assert answer["noise"] == [{"site": "fc1@after_activation", "noise": "bernoulli", "rate": 0.5}]


def test_an_audit_that_passes(run):
    result = run("audit", "toy.py:model", "conv1=0.5,last=0.25", *TOY_DATA)
    assert result.stdout.startswith("audit of 'conv1=0.5,last=0.25': ok")
    answer = json.loads(run("audit", "toy.py:model", "fc1=0.5", *TOY_DATA, "--json").stdout)
    assert answer["ok"] is True
    assert answer["placement"] == "fc1=0.5"
    assert answer["findings"][0]["site"] == "fc1@after_activation"


def test_an_audit_that_fails_exits_with_1(run):
    result = run("audit", "toy.py:cut_off", "fc1=0.5", *TOY_DATA, code=1)
    assert "the output does not depend on it" in result.stdout
    assert json.loads(run("audit", "toy.py:cut_off", "fc1=0.5", *TOY_DATA, "--json", code=1).stdout)["ok"] is False


@pytest.mark.parametrize(
    ("placement", "name", "shown"),
    [
        ("fc9=0.5", "placement", "'fc9'"),
        ("fc1=1.0", "rate of 'fc1'", "1.0"),
        ("fc1=-0.1", "rate of 'fc1'", "-0.1"),
        ("fc1=nan", "rate of 'fc1'", "'nan'"),
        ("", "placement", "''"),
        ("fc1@weights=0.5", "position", "'weights'"),
        ("attention=0.5", "placement", "'attention=0.5'"),
        ("own", "placement", "unused"),
    ],
)
def test_a_bad_placement_is_one_message_and_exit_code_2(run, placement, name, shown):
    result = run("audit", "toy.py:model", placement, *TOY_DATA, code=2)
    assert refusal(result).name == name
    assert f"got {shown}" in result.stderr


def test_a_name_close_to_a_site_is_suggested(run):
    assert "'fc2' or 'fc1'?" in run("audit", "toy.py:model", "fc9=0.5", *TOY_DATA, code=2).stderr


def test_a_bad_placement_is_refused_before_any_code_runs(run):
    assert "fc1" in refusal(run("audit", "no_such_file.py:model", "fc1=2", *TOY_DATA, code=2)).name


@pytest.mark.parametrize(
    ("model", "data", "named"),
    [
        ("missing.py:model", "toy.py:data", "'missing.py'"),
        ("toy.py:mdel", "toy.py:data", "'model'?"),
        ("toy.py:fails", "toy.py:data", "toy.py:30: RuntimeError: no weights here"),
        ("toy.py:data", "toy.py:data", "torch.nn.Module"),
        ("toy.py:model", "toy.py:datta", "'data'?"),
        ("toy.py:model", "toy.py:model", "Net"),
        ("toy.py:model", "missing.csv", "not found"),
        ("toy.py:fails", "missing.csv", "not found"),  # before the model is built
        ("toy.py:fails", "nowhere.py:data", "'nowhere.py'"),
        ("toy.py:model", "missing_folder", "'missing_folder', which was not found"),
        ("toy.py:model", "toy.pt", "not found. Did you mean 'toy.py'"),
    ],
)
def test_a_bad_name_is_one_message_and_exit_code_2(run, model, data, named):
    result = run("sites", model, "--data", data, code=2)
    assert refusal(result)
    assert named in result.stderr


def test_a_volume_that_is_missing_is_reported_before_the_model_is_built(run):
    options = ("--placement", "last=0.5", "--image", "missing.nii.gz", "--out", "maps")
    assert "missing.nii.gz" in run("predict", "toy.py:fails", *options, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "name", "flag"),
    [
        (("--passes", "0"), "passes", "--passes 100"),
        (("--rates", "0.1,half"), "--rates", "--rates 0.1,0.5"),
        (("--memory", "4 KiB"), "memory", "--memory 4GiB"),
        (("--device", "gpu"), "device", "--device cpu"),
        (("--outputs", "logit"), "outputs", "--outputs must"),
    ],
)
def test_an_error_of_the_library_names_the_flag(run, arguments, name, flag):
    result = run("sweep", "toy.py:model", *TOY_DATA, "--sites", "fc1", *arguments, "--dry-run", code=2)
    assert refusal(result).name == name
    assert flag in result.stderr
    assert f"{name}=" not in result.stderr


def test_a_missing_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'dropscope[text]'" in run("sites", "hf:some/checkpoint", *TOY_DATA, code=2).stderr


def test_a_missing_argument_is_bad_input_too(run):
    run("sites", "toy.py:model", code=2)
    run("new", "keras", code=2)


def test_a_fault_that_is_not_bad_input_keeps_its_traceback(run):
    result = run("sites", "toy.py:divides", *TOY_DATA, code=1)
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("--json",)])
def test_inputs_that_do_not_fit_are_one_message_with_their_shape(run, arguments):
    commands = [("audit", "toy.py:model", "fc1=0.5"), ("sweep", "toy.py:model", "--sites", "fc1")]
    commands += [("uncertainty", "toy.py:model"), ("try", "toy.py:model")]
    commands += [] if arguments == ("--dry-run",) else [("sites", "toy.py:model")]
    for command in commands:
        for data in ("toy.py:wrong", "toy.py:coloured"):
            result = run(*command, "--data", data, *arguments, code=2)
            assert refusal(result).name == "data"
            assert ", 7) float32" in result.stderr or ", 3, 4, 4) float32" in result.stderr


def test_fields_of_dicts_are_named_by_keys(run):
    result = run("audit", "toy.py:model", "fc1=0.5", "--data", "toy.py:by_key", code=2)
    assert "--keys image,label" in result.stderr
    assert ": ok" in run("audit", "toy.py:model", "fc1=0.5", "--data", "toy.py:by_key", "--keys", "image,label").stdout


def test_labels_are_not_read_where_they_are_not_needed(run):
    assert ": ok" in run("audit", "toy.py:model", "fc1=0.5", "--data", "toy.py:badly_labelled").stdout
    assert "fc1" in run("sites", "toy.py:model", "--data", "toy.py:badly_labelled").stdout


def test_an_image_folder_from_sites_to_a_sweep(run, tmp_path):
    for number in range(8):
        for name, value in (("cat", 10), ("dog", 90), ("eel", 200)):
            (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
            grey = np.full((4, 4), value + number, np.uint8)
            Image.fromarray(grey).save(tmp_path / "pictures" / name / f"{number}.png")
    assert run("sites", "toy.py:model", "--data", "pictures").stderr == ""
    assert ": ok" in run("audit", "toy.py:model", "fc1=0.5", "--data", "pictures/cat").stdout
    options = ("--sites", "fc1", "--rates", "0.5", "--passes", "3")
    result = run("sweep", "toy.py:model", "--data", "pictures", *options)
    assert "5 rows" in result.stdout
    assert "remark: pixels are in [0, 1], not normalised" in result.stderr
    assert "--mean imagenet" in result.stderr
    options = (*options, "--mean", "0.5", "--std", "0.25")
    assert "not normalised" not in run("sweep", "toy.py:model", "--data", "pictures", *options).stderr
    unlabelled = run("sweep", "toy.py:model", "--data", "pictures/cat", *options, code=2)
    assert "sub-folder per class" in unlabelled.stderr
    wrong = run("sweep", "toy.py:model", "--data", "pictures", *options, "--class-names", "cat,dog", code=2)
    assert refusal(wrong).name == "class_names"
    transformed = run("sites", "toy.py:model", "--data", "pictures", "--transforms", "toy.py:scaled")
    assert "fc1" in transformed.stdout


@pytest.mark.parametrize("framework", ["torch", "hf", "monai"])
def test_a_template_runs_as_it_is(run, framework):
    pytest.importorskip({"hf": "transformers"}.get(framework, framework))
    result = run("new", framework, f"{framework}_net.py", wrote=(f"{framework}_net.py",))
    command = result.stdout.splitlines()[-1].removeprefix("next: dropscope ").split()
    assert "dropout" in run(*command).stdout
    assert ": ok" in run("audit", command[1], "own", *command[2:]).stdout


def test_new_never_overwrites(run):
    before = Path("toy.py").read_text()
    assert refusal(run("new", "torch", "toy.py", code=2)).received == "toy.py"
    assert Path("toy.py").read_text() == before
    assert "net.py" in refusal(run("new", "torch", "net.txt", code=2)).remedy
    assert "no_folder" in refusal(run("new", "torch", "no_folder/net.py", code=2)).remedy
    assert run("new", "torch", "net.txt", code=2).stderr.startswith("error: FILE must")


def test_new_has_a_default_name_a_dry_run_and_json(run):
    assert "would write: my_model.py" in run("new", "torch", "--dry-run").stdout
    answer = json.loads(run("new", "torch", "--json", wrote=("my_model.py",)).stdout)
    assert answer == {"wrote": "my_model.py", "next": "dropscope sites my_model.py:model --data my_model.py:data"}


SWEEP = ("sweep", "toy.py:model", *TOY_DATA, "--sites", "fc1", "--rates", "0.2,0.5", "--passes", "4")


def test_a_sweep_prints_its_best_rows_beside_the_plain_pass(run):
    result = run(*SWEEP, "--objective", "error_auroc", "--label", "plain")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["placement", "measure", "error_auroc↑"]
    assert lines[0].split()[-3:] == ["cost↓", "aurc↓", "isotonic_penalty↓"]
    assert {line.split()[0] for line in lines[1:11]} == {"fc1=0.2", "fc1=0.5"}
    assert {line.split()[0] for line in lines[11:14]} == {"none"}
    assert lines[-1].startswith("10 rows by the")


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_a_sweep_fits_its_terminal_and_names_its_placements(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("sweep", "toy.py:model", *TOY_DATA, "--sites", "conv1,fc1,fc2", "--rates", ".25", "--passes", "2")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split()[:3] == ["placement", "measure", "aurc↓"]
    assert "…" not in result.stdout
    assert any(line.startswith("conv1=0.25") for line in lines)


def test_a_sweep_over_named_placements(run):
    run("sweep", "toy.py:model", *TOY_DATA, "--passes", "2", code=2)
    (options := ["sweep", "toy.py:model", *TOY_DATA, "--passes", "2", "--json"]).extend(["--placements"])
    texts = json.loads(run(*options, "fc1=0.5;conv1=.25").stdout)
    assert {row["placement"] for row in texts["best"]} == {"fc1=0.5", "conv1=0.25"}
    both = json.loads(run(*options, "fc1=0.5", "--sites", "conv1", "--rates", "0.25").stdout)
    assert {row["placement"] for row in both["best"]} == {"fc1=0.5", "conv1=0.25"}


@pytest.mark.parametrize(
    ("option", "written", "remedies"),
    [
        ("--sites", "linear", ("linear@after_activation for", "all.linear for")),
        ("--sites", "lnear", ("'linear'?",)),
        ("--placements", "linear=0.5", ("linear@after_activation=0.5 for", "all.linear=0.5 for")),
    ],
)
def test_a_name_that_the_model_cannot_place_is_refused_in_the_words_of_the_option(run, option, written, remedies):
    result = run("sweep", "toy.py:named", *TOY_DATA, option, written, "--passes", "2", code=2)
    assert refusal(result).name == option[2:]
    assert result.stderr.startswith(f"error: {option} must")
    assert f"got '{written}'" in result.stderr
    assert all(remedy in result.stderr for remedy in remedies)
    run("sweep", "toy.py:named", *TOY_DATA, "--sites", "all.linear", "--passes", "2", "--dry-run")


def test_a_sweep_as_json_and_its_folder(run):
    answer = json.loads(run(*SWEEP, "--out", "rows", "--json", wrote=("rows",)).stdout)
    assert answer["folder"] == "rows"
    assert {row["placement"] for row in answer["best"]} == {"fc1=0.2", "fc1=0.5"}
    assert {row["placement"] for row in answer["baseline"]} == {"none"}


def test_a_sweep_that_is_only_planned(run):
    assert "2 placements" in run(*SWEEP, "--out", "rows", "--dry-run").stdout
    answer = json.loads(run(*SWEEP, "--dry-run", "--json").stdout)
    assert set(answer["stages"]) == {"set-up", "passes", "scores", "finalists"}
    assert answer["seconds"] == pytest.approx(sum(answer["stages"].values()))


def test_a_folder_holds_one_sweep(run):
    run(*SWEEP, "--out", "rows", wrote=("rows",))
    result = run(*SWEEP, "--out", "rows", "--seed", "1", code=2)
    assert refusal(result).name == "out"
    assert result.stderr.startswith("error: --out must")


def test_shards_of_a_sweep(run):
    two = ("sweep", *SWEEP[1:], "--placements", "fc2=0.5", "--out", "rows")
    first = json.loads(run(*two, "--shard", "2/2", "--json", wrote=("rows",)).stdout)
    assert first == {"shard": "2/2", "computed": 1, "there": 1, "parts": 2, "folder": "rows"}
    assert "1 of 2" in run(*two, "--shard", "2/2").stdout
    last = json.loads(run(*two, "--shard", "1/2", "--json").stdout)
    assert {row["placement"] for row in last["best"]} == {"fc1=0.2", "fc1=0.5", "fc2=0.5"}
    assert refusal(run(*two, "--shard", "3/2", code=2)).name == "shard"
    assert refusal(run(*SWEEP, "--shard", "1/2", code=2)).name == "out"


def test_a_demo_that_is_only_planned(run):
    assert run("demo", "--passes", "3", "--dry-run").stdout == "999 placements × 3 passes; writes dropscope-demo\n"
    answer = json.loads(run("demo", "--dry-run", "--json").stdout)
    assert answer == {"placements": 999, "passes": 100, "would_write": "dropscope-demo"}
