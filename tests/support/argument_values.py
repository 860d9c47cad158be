"""What random argument lists are made of: commands that work, values that options take, and values that none takes."""

from __future__ import annotations

import random

NET = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).eval()

def segments():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.3), nn.Conv3d(4, 3, 1)).eval()

def slices():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()

def silent():
    made = model()
    nn.init.zeros_(made[4].weight)
    return made

def not_a_number():
    made = model()
    nn.init.constant_(made[4].bias, float("nan"))
    return made

def one_output():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 1))

def no_layers():
    return nn.Identity()

def empty():
    return nn.Sequential()

class Returns(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 3)
    def forward(self, x):
        return {"logits": self.fc(x.flatten(1)), "text": "x"}

def returns_text():
    return Returns()

def returns_none():
    made = Returns()
    made.forward = lambda x: None
    return made

def on_meta():
    return model().to("meta")

def in_half():
    return model().double()

def data():
    return torch.rand(12, 3, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3

def many():
    return torch.rand(48, 3, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3

def unlabelled():
    return data()[0]

def one_example():
    return data()[0][:1], data()[1][:1]

def no_example():
    return data()[0][:0], data()[1][:0]

def one_class():
    return data()[0], torch.zeros(12, dtype=torch.long)

def of_whole_numbers():
    return (data()[0] * 255).to(torch.uint8), data()[1]

def nan_data():
    return data()[0] * float("nan"), data()[1]

def float_labels():
    return data()[0], data()[1] / 2

def large_labels():
    return data()[0], data()[1] + 2**40

def negative_labels():
    return data()[0], data()[1] - 5

def text_labels():
    return data()[0], ["a", "b", "c"] * 4

def fewer_labels():
    return data()[0], data()[1][:5]

def of_other_shape():
    return torch.rand(12, 7), data()[1]

def by_key():
    return [{"image": x, "label": y} for x, y in zip(*data())]

def batches():
    return [(x[None], y[None]) for x, y in zip(*data())]

def volumes():
    return torch.rand(2, 1, 4, 4, 4), torch.zeros(2, 4, 4, 4, dtype=torch.long)

def loader():
    return torch.utils.data.DataLoader(list(zip(*data())), batch_size=5)

def generator():
    yield from zip(*data())

def nothing():
    return None

def a_list():
    return [1, 2, 3]

def a_number():
    return 3

def a_dict():
    return {"x": data()[0]}

def raises():
    raise RuntimeError("no weights\\nhere")

def raises_odd():
    raise KeyError("[red]\\ud800\\x1b[31m")

def ends():
    raise SystemExit(3)

def recurses():
    return recurses()

def takes(x):
    return x

def scaled(image):
    import numpy
    return torch.from_numpy(numpy.array(image, dtype="float32")).movedim(-1, 0) / 255

def halved(array):
    return array / 2

def to_text(image):
    return "text"

value = 3
"""

_CALLABLES = [line.split("(")[0].removeprefix("def ") for line in NET.splitlines() if line.startswith("def ")]
NAMES = tuple(f"net.py:{name}" for name in (*_CALLABLES, "value", "Returns", "torch", "nope", "é", "__name__"))
_MODEL, _DATA = "net.py:model", ("--data", "net.py:data")
_SMALL = ("--passes", "2")

STARTS = (
    ("sites", _MODEL, *_DATA),
    ("sites", _MODEL, "--data", "images"),
    ("sites", "hf:bert", "--data", "t.csv"),
    ("audit", _MODEL, "1=0.5", *_DATA),
    ("audit", _MODEL, "own", "--data", "flat", "--labels", "flat.csv"),
    ("audit", "hf:bert", "own", "--data", "t.jsonl"),
    ("sweep", _MODEL, *_DATA, "--sites", "1", "--rates", "0.5", *_SMALL),
    ("sweep", _MODEL, *_DATA, "--placements", "own;1=0.2", *_SMALL),
    ("sweep", "hf:bert", "--data", "t.csv", "--placements", "own", *_SMALL),
    ("try", _MODEL, "--data", "net.py:many", *_SMALL, "--budget", "0.1"),
    ("uncertainty", _MODEL, *_DATA, *_SMALL),
    ("uncertainty", _MODEL, "--data", "images", *_SMALL, "--placement", "4=0.5"),
    ("uncertainty", "hf:bert", "--data", "t.csv", *_SMALL),
    ("predict", "net.py:segments", "--placement", "own", "--image", "volumes", "--out", "maps", *_SMALL,
     "--no-overlays"),
    ("predict", "net.py:slices", "--placement", "0=0.5", "--image", "volumes/v.nii.gz", "--out", "maps", *_SMALL,
     "--roi", "4x4", "--no-overlays"),
    ("demo", "--dry-run"),
    ("new", "torch", "new.py"),
    ("new", "hf"),
    ("study", "where-to-drop", "--dry-run", "--data", "net.py:data", "--model", _MODEL, "--preset", "smoke"),
    ("study", "where-to-drop", "--dry-run", "--data", "images", "--task", "mammography", "--preset", "smoke"),
    ("study", "transformer-profile", "--dry-run", "--data", "t.csv", "--models", "bert", "--preset", "smoke"),
    ("study", "transformer-profile", "--dry-run", "--squad", "squad.json", "--hellaswag", "hellaswag.jsonl",
     "--models", "bert", "--preset", "smoke", "--items", "20"),
    ("study", "segmentation-measures", "--dry-run", "--preset=smoke"),
)  # fmt: skip

_PATHS = (
    *("net.py", "t.csv", "t.jsonl", "bytes.csv", "nothing.csv", "dangling.csv", "loop", "loop/x", "empty", "images"),
    *("images/a/1.png", "flat", "volumes", "volumes/v.nii.gz", "bert", "net.py/x", "nowhere", "nowhere.csv", "~/work"),
    *("/dev/null", "/proc/self/mem", "/proc/nowhere", "~", "~nobody/x", "bert/config.json", "squad.json"),
)
INPUTS = {
    "--data": (*NAMES, *_PATHS),
    "--labels": (*_PATHS, "flat.csv", "labels", "labels/{case}.nii.gz", "{x}", "{case", "{case!z}", "{0}", "**"),
    "--image": (*_PATHS, "volumes,volumes", "volumes/v.nii.gz,volumes/v.nii.gz", "volumes/*", "**", "["),
    "--tokenizer": (*_PATHS, "hf:bert", "nobody/nothing"),
    "--transforms": NAMES,
    "--class-names": (*_PATHS, "names.txt", "a,b,c", "a,a,a", ",,,"),
    "--placements": (*_PATHS, "placements.txt"),
    "--model": NAMES,
    "--models": (*_PATHS, "bert,bert", "nobody/nothing"),
    "--weights": _PATHS,
    "--squad": _PATHS,
    "--hellaswag": _PATHS,
}
GOOD: dict[str, tuple[str, ...]] = {
    "--data": ("net.py:data", "images", "flat", "t.csv", "t.jsonl", "phantom"),
    "--keys": ("image,label", "image", "x,y,z"),
    "--tokenizer": ("bert",),
    "--text-column": ("text", "group"),
    "--label-column": ("label", "group"),
    "--labels": ("flat.csv", "labels"),
    "--image-size": ("2", "2x2", "4"),
    "--mean": ("imagenet", "cifar10", "0.5", "0.5,0.5,0.5"),
    "--std": ("1", "0.2,0.2,0.2"),
    "--transforms": ("net.py:scaled", "net.py:halved"),
    "--class-names": ("a,b,c", "names.txt"),
    "--placement": ("own", "none", "1=0.5", "last=0.5", "all=0.1", "own*2", "0=0.2"),
    "--placements": ("own;none", "placements.txt", "1=0.1;4=0.1"),
    "--sites": ("1", "1,4", "last"),
    "--rates": ("0.1", "0.1,0.2"),
    "--positions": ("auto", "input", "auto,output"),
    "--noise": ("bernoulli", "gaussian", "bernoulli,gaussian", "multinomial"),
    "--measures": ("predictive_entropy", "all", "plain_entropy,mutual_information", "averaged_variance"),
    "--sort": ("predictive_entropy", "plain_entropy"),
    "--passes": ("1", "2", "3"),
    "--seed": ("0", "1", "-1"),
    "--budget": ("0.1", "1"),
    "--show": ("0", "3", "100"),
    "--out": ("out", "out.csv", "out.parquet", "t.csv", "empty", "nowhere/out.csv", "net.py/x", "nowhere/a/b"),
    "--device": ("cpu", "cuda", "cuda:0"),
    "--memory": ("auto", "1GiB", "4GiB", "1B"),
    "--roi": ("4x4x3", "2x2x2", "4x4", "8,8,8"),
    "--overlap": ("0", "0.5"),
    "--batch-size": ("1", "2"),
    "--image": ("volumes", "volumes/v.nii.gz"),
    "--n-train": ("2", "1,2"),
    "--epochs": ("1",),
    "--steps": ("1",),
    "--batch": ("1",),
    "--features": ("4,8", "4,8,16"),
    "--model": ("net.py:model", "net.py:segments"),
    "--models": ("bert",),
    "--items": ("20", "40"),
    "--seeds": ("1", "2"),
    "--learning-rate": ("2e-5",),
    "--side": ("32",),
    "--label": ("mean", "plain"),
    "--outputs": ("logits", "probabilities", "binary_logit", "multilabel_logits"),
    "--objective": ("aurc", "error_auroc", "ece", "isotonic_penalty", "nll"),
    "--masks": ("per_example", "per_pass"),
    "--scale": ("percentiles", "none"),
    "--preset": ("smoke",),
    "--task": ("cifar10", "mammography"),
    "--network": ("cnn", "vit", "efficientnet"),
    "--precision": ("auto", "fp32", "tf32", "bf16", "fp16"),
    "--train": ("once", "per_configuration", "none"),
    "--long-texts": ("skip", "cut"),
    "--dropout": ("training", "inference"),
    "--split": ("by_patient", "by_image"),
    "--augment": ("normal", "all", "none"),
}  # fmt: skip

_NINES = "9" * 400
_NUMBERS = (
    *("0", "-0", "1", "-1", "+5", "3", "0.5", ".5", "5.", "1e5", "1e-400", "1e400", "-1e400", "nan", "-nan", "inf"),
    *("-inf", "Infinity", "0x10", "0b1", "1_000", "1__0", " 5 ", "5,", "٣", "３", "½", "1/2", "50%", "1e", "--1", "1j"),
    *(str(2**31 - 1), str(2**31), str(2**63), str(-(2**63) - 1), _NINES, f"-{_NINES}", f"0.{_NINES}", "True", "None"),
    *("0,0", "0.1,0.1", "0.5,nan", "1,2,3,4,5", "0x0", "4x4", "99999999999", "99999999999x1", "4x4x4x4", "0x0x0"),
)
_WORDS = (
    *("", " ", "\t", "a b", "a\nb", "a\rb", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x85", "\u2028", "\ufeff", "\u200b"),
    *("é", "e\u0301", "日本語", "\U0001f469\u200d\U0001f4bb", "\u202eabc", "ß", "ǅ", "\udcff", "a\ud800", "a\0b", "\0"),
    *("[red]", "[/]", "[/red]", "[link=x]", "%s", "%(a)s", "{}", "{0}", "{x!r}", "{case.__class__}", "$HOME", "`ls`"),
    *("'", '"', "'a\"b", "\\", "a\\", ":", "::", "a:", ":a", "a:b:c", ";", ";;", ",", ",,", "=", "a=", "=a", "*", "**"),
    *("-", "--", "---", "-x", "-1x", "--nope", "--no-json", "--json", "--help", "--version", "?", "[", "(", "#", "@"),
    *("hf:", "hf:/", "hf:..", "hf:a/b/c", "hf:bert", "hf:empty", "hf:t.csv", "hf: ", "os:getcwd", "json:loads"),
    *("nowhere:x", "math:pi", "..:x", ".x:y", "a b:c", "x" * 300, f"{'x' * 300}.py", f"{'x/' * 3000}y.py", "x" * 9000),
    *(f"{'x' * 300}.csv", "é.py", "new.py", "new.PY", ".py", "a/.py", "con.py", "out.csv", ".csv", "x.parquet", "x.pt"),
    *(
        "cpu",
        "CPU",
        "cuda",
        "cuda:99",
        "cuda:-1",
        "cpu:7",
        "vulkan",
        "hpu",
        "mps",
        "xla",
        "meta",
        "gpu",
        "ipu:0",
        "fpga",
    ),
    *("auto", "4GiB", "4 gib", "0GiB", "-1GiB", "nanGiB", "1e400GiB", f"{_NINES}GiB", "GiB", "4PiB", "1KB", "10%"),
    *("all", "none", "own", "usual", "mean", "entropy", "aurc", "smoke", "logit", "percentiles", "1;2"),
    *(
        ".",
        "..",
        "../..",
        "../x",
        "./out",
        "out/",
        "nowhere/x",
        "~",
        "~/x",
        "~nobody/x",
        "/proc/nowhere",
        "/dev/null/x",
    ),
)
_PIECES = (
    *("own", "none", "all", "last", "1", "4", "0", "attention", "dropout", "conv", "own.attention", "all.1", "é", "x"),
    *("=", "=", "=", "*", ",", ",", ";", "@", "#", " ", ".", ":", "0.5", "0.1", "1", "2", "-1", "nan", "1e-9", "0"),
    *("@input", "@output", "@weights", "@branch", "@sum", "@nope", "#1", "#999999999", " noise=gaussian", " noise=x"),
    *(" mask=element", " mask=", " noise=", " noise=a noise=b", "{rate}", "{noise}", "own*2", "1=0.5", "4=0.5"),
)


def odd_value(draw: random.Random) -> str:
    """A number, a word, a path or a placement, most of them wrong in most places."""
    match draw.randrange(9):
        case 0 | 1 | 2:
            return draw.choice(_NUMBERS)
        case 3 | 4:
            return draw.choice(_WORDS)
        case 5:
            return draw.choice((*NAMES, *(path for path in _PATHS if not path.startswith("/"))))
        case 6:
            return odd_placement(draw)
        case 7:
            return str(draw.choice((draw.uniform(-2, 2), draw.randint(-5, 20), draw.gauss(0, 10) ** 9)))
        case _:
            return "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randint(1, 6)))


def odd_placement(draw: random.Random) -> str:
    """Pieces of a placement in any order."""
    return "".join(draw.choices(_PIECES, k=draw.randint(1, 7)))
