"""Data of every kind: what a source stands for, what fits it, its first examples, and the names of its classes."""

import types

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from dropscope.data.dataset import read_data
from dropscope.engine import open_session
from dropscope.injection import audit, find_sites
from dropscope.loading.names import LoadedModel
from dropscope.loading.sources import few_inputs, load_data
from dropscope.runs import maps, sample, sweep, uncertainty
from support.errors import refused
from support.word_lengths import WordLengths

PLAIN = LoadedModel("net.py:model", nn.Linear(4, 2))
NET = """
import torch

def data():
    return torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 1])
"""


def test_data_that_is_none_is_refused(write):
    write("net.py", "def data():\n    pass")
    with refused("data") as caught:
        load_data("net.py:data", PLAIN)
    assert caught.value.received is None


def test_options_that_do_not_fit_are_refused(write):
    write("net.py", NET)
    with refused("text_column"):
        load_data("net.py:data", PLAIN, text_column="text")
    write("val.csv", "text\na\n")
    with refused("image_size") as caught:
        load_data("val.csv", PLAIN, image_size="3")
    assert "text_column= and label_column=" in caught.value.remedy


def test_a_text_table_needs_a_tokenizer(write):
    write("val.csv", "text,label\nfine,1\n")
    with refused("model") as caught:
        load_data("val.csv", PLAIN)
    assert caught.value.received == PLAIN.name


# --- the first few examples -------------------------------------------------------------------------------------------


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(80.0).reshape(20, 4))


X, Y = torch.arange(80.0).reshape(20, 4), torch.zeros(20, dtype=torch.long)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        X,
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True),
        DataLoader(_Stream(), batch_size=8),
        [(X[:8], Y[:8]), (X[8:], Y[8:])],
        iter([(X[:8], Y[:8])]),
    ],
    ids=["pair", "tensor", "dataset", "loader", "stream", "batches", "generator"],
)
def test_the_first_examples_come_in_order_from_any_form(data):
    (few,) = few_inputs(data, nn.Linear(4, 2))
    torch.testing.assert_close(few, X[:8])


def test_inputs_by_name_stay_named():
    few = few_inputs({"input_ids": X.long(), "labels": Y}, nn.Linear(4, 2))
    assert list(few) == ["input_ids"]


def test_a_large_data_set_is_not_read_whole():
    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            assert index < 8
            return X[index]

    (few,) = few_inputs(Large(), nn.Linear(4, 2))
    assert len(few) == 8


# --- every kind of source, in every function --------------------------------------------------------------------------

LABELLED = pd.DataFrame({"text": ["a fine film", "awful", "fine fine"], "label": ["good", "bad", "good"]})


class TextNet(nn.Module):
    """A classifier of word lengths, with names for its classes where it is given any."""

    def __init__(self, *names: str, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.fc = nn.Embedding(32, 8), nn.Linear(8, outputs)
        if names:
            self.config = types.SimpleNamespace(id2label=dict(enumerate(names)))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu((self.embed(input_ids) * attention_mask[..., None]).mean(1)))


@pytest.fixture
def texts(tmp_path):
    """One set of labelled texts in every form that holds it."""
    LABELLED.to_csv(tmp_path / "a.csv", index=False)
    LABELLED.to_parquet(tmp_path / "a.parquet")
    LABELLED.to_json(tmp_path / "A.JSONL", orient="records", lines=True)
    pair = (LABELLED.text.tolist(), LABELLED.label.tolist())
    files = [tmp_path / "a.csv", str(tmp_path / "a.parquet"), tmp_path / "A.JSONL"]
    forms = [*files, LABELLED, pair, (LABELLED.text, LABELLED.label)]
    datasets = pytest.importorskip("datasets")
    return [*forms, datasets.Dataset.from_pandas(LABELLED)]


def test_labelled_texts_of_every_form_give_one_table(texts):
    model = TextNet("bad", "good")
    tables = [uncertainty(model, "fc@input=0.5", form, passes=4, tokenizer=WordLengths()) for form in texts]
    assert tables[0].label.tolist() == [1, 0, 1]
    for table in tables[1:]:
        pd.testing.assert_frame_equal(table, tables[0])


def test_texts_alone_have_no_labels():
    for form in (LABELLED.text, LABELLED.text.tolist(), tuple(LABELLED.text), LABELLED[["text"]], LABELLED.text.values):
        loaded = load_data(form, tokenizer=WordLengths())
        assert loaded.names == LABELLED.text.tolist()
        assert read_data(loaded.dataset).labels is None


def test_what_load_data_returns_is_taken_everywhere(texts):
    model = TextNet("bad", "good")
    loaded = load_data(LABELLED.rename(columns={"text": "t", "label": "l"}), model, tokenizer=WordLengths(),
                       text_column="t", label_column="l")  # fmt: skip
    assert len(uncertainty(model, "fc@input=0.5", loaded, passes=3)) == 3
    assert sample(model, "fc@input=0.5", loaded, passes=3).shape == (3, 3, 2)
    assert len(sweep(model, ["fc@input=0.5"], loaded, passes=3).rows) == 5
    assert [site.name for site in find_sites(model, loaded)]
    assert audit(model, "embed=0.5", loaded).ok
    assert load_data(loaded) is loaded
    assert load_data(loaded, class_names="x,y").class_names == ("x", "y")


def test_texts_need_a_tokenizer():
    for form in (LABELLED, ["fine"], (["fine"], [0])):
        with refused("tokenizer") as caught:
            uncertainty(TextNet(), "fc=0.5", form)
        assert "tokenizer=" in caught.value.remedy
    for wrong in (3, types.SimpleNamespace(pad_token=None)):
        with refused("tokenizer"):
            load_data(["fine"], tokenizer=wrong)
    without = WordLengths()
    without.pad_token = None
    with refused("tokenizer"):
        load_data(["fine"], tokenizer=without)
    with refused("tokenizer"):
        read_data(load_data(["fine"], tokenizer=lambda texts: {}).dataset)
    with refused("tokenizer"):
        load_data((X, Y), tokenizer=WordLengths())


def test_tokens_are_padded_on_the_right_and_cut_to_what_the_model_takes():
    left = WordLengths()
    left.padding_side = "left"
    model = TextNet()
    model.config = types.SimpleNamespace(model_type="some", max_position_embeddings=2, pad_token_id=0)
    (batch,) = load_data(["a fine film", "awful"], model, tokenizer=left).dataset
    assert batch["input_ids"].tolist() == [[1, 4], [5, 0]]
    assert left.padding_side == "left"


@pytest.mark.parametrize(
    ("frame", "options", "name"),
    [
        (pd.DataFrame({"body": ["fine"]}), {}, "text_column"),
        (pd.DataFrame({"body": ["fine"]}), {"text_column": "bdy"}, "text_column"),
        (pd.DataFrame([["fine", "x"]], columns=["text", "text"]), {}, "text_column"),
        (pd.DataFrame({"text": []}), {}, "data"),
        (pd.DataFrame({"text": [3]}), {}, "row 1 of data"),
        (pd.DataFrame({"text": ["fine", None]}), {}, "row 2 of data"),
        (pd.DataFrame({"text": ["fine", "half \ud800"]}, dtype=object), {}, "row 2 of data"),
        (pd.DataFrame({"text": ["fine"], "label": [10**400]}, dtype=object), {}, "row 1 of data, column 'label'"),
        (pd.DataFrame({"text": ["fine"], "label": [[1]]}, dtype=object), {}, "row 1 of data, column 'label'"),
        ((["fine", "bad"], [0]), {}, "labels"),
        (LABELLED, {"image_size": 3}, "image_size"),
        (["fine"], {"text_column": "text"}, "text_column"),
    ],
)
def test_texts_with_a_fault_say_where(frame, options, name):
    with refused(name):
        load_data(frame, tokenizer=WordLengths(), **options)


# --- names of classes -------------------------------------------------------------------------------------------------


class Named(TensorDataset):
    classes = ("cat", "dog")


PAIR = (torch.randn(6, 4), torch.tensor([0, 1] * 3))


def net(*names: str, outputs: int = 2) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))
    if names:
        model.config = types.SimpleNamespace(id2label=dict(enumerate(names)))
    return model


def test_class_names_come_from_the_caller_the_data_or_the_model():
    datasets = pytest.importorskip("datasets")
    labelled = Named(*PAIR)
    plain = TensorDataset(*PAIR)
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32")),
                                  "label": datasets.ClassLabel(names=["cat", "dog"])})  # fmt: skip
    table = datasets.Dataset.from_dict({"x": PAIR[0].tolist(), "label": PAIR[1].tolist()}, features=features)
    for model, data, options, expected in (
        (net("a", "b"), labelled, {"class_names": ["x", "y"]}, ("x", "y")),
        (net("a", "b"), labelled, {"class_names": "x, y"}, ("x", "y")),
        (net("a", "b"), labelled, {}, ("cat", "dog")),
        (net("a", "b"), DataLoader(Subset(labelled, range(4)), batch_size=2), {}, ("cat", "dog")),
        (net("a", "b"), plain, {}, ("a", "b")),
        (net("LABEL_0", "LABEL_1"), plain, {}, None),
        (net("a"), plain, {}, None),
        (net(), plain, {}, None),
        (net("a", "b"), load_data(plain, class_names=["x", "y"]), {}, ("x", "y")),
        (net(), table, {"keys": ("x", "label")}, ("cat", "dog")),
    ):
        assert open_session(model, data, **options).class_names == expected


def test_class_names_that_do_not_fit_the_outputs_are_refused(tmp_path):
    for data, options in ((PAIR, {"class_names": ["a", "b", "c"]}), (Named(*PAIR), {})):
        with refused("class_names"):
            open_session(net(outputs=2 if options else 3), data, **options)
    with refused("data") as caught:
        open_session(net("dog", "cat"), Named(*PAIR))
    assert "class_names" in caught.value.remedy
    assert open_session(net("dog", "cat"), Named(*PAIR), class_names=("dog", "cat")).class_names == ("dog", "cat")
    for wrong in ((), "", "a,,b", ["a", "a"], [1, 2], 3, ["a", " "]):
        with refused("class_names"):
            open_session(net(), PAIR, class_names=wrong)
    (tmp_path / "names.txt").write_text("one, two\nthree\n")
    names = open_session(net(), PAIR, class_names=str(tmp_path / "names.txt")).class_names
    assert names == ("one, two", "three")


def test_class_names_of_other_outputs():
    x = torch.randn(4, 4)
    binary, labels = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), ["no", "yes"]
    assert open_session(binary, x, outputs="binary_logit", class_names=labels).class_names == ("no", "yes")
    many = ["a", "b", "c"]
    assert open_session(net(outputs=3), x, outputs="multilabel_logits", class_names=many).class_names == tuple(many)


def test_a_folder_of_fewer_classes_than_outputs_is_refused(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "a.png")
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match="0 = cat"), refused("class_names"):
        open_session(model, tmp_path)
    session = open_session(model, load_data(tmp_path, class_names="ant,cat,dog"))
    assert session.class_names == ("ant", "cat", "dog")
    assert session.data.labels.tolist() == [1, 2]


def test_paths_go_straight_into_a_sweep_and_say_what_was_guessed(tmp_path):
    for i in range(6):
        (tmp_path / "cd"[i % 2]).mkdir(exist_ok=True)
        Image.new("L", (2, 2), 20 * i).save(tmp_path / "cd"[i % 2] / f"{i}.png")
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match=r"\[0, 1\]"):
        run = sweep(model, ["1=0.5"], tmp_path, passes=3)
    assert len(run.rows) == 5
    with pytest.warns(UserWarning, match="not normalised"), refused("data"):
        sweep(model, ["1=0.5"], str(tmp_path / "c"), passes=3)


# --- inputs that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["find_sites", "audit", "uncertainty", "sample", "sweep", "maps"])
def test_inputs_of_another_shape_are_one_clear_error(function):
    wrong = torch.zeros(4, 7), torch.zeros(4)
    call = {
        "find_sites": lambda: find_sites(net(), wrong[0]),
        "audit": lambda: audit(net(), "0=0.5", wrong[0]),
        "uncertainty": lambda: uncertainty(net(), "0=0.5", wrong),
        "sample": lambda: sample(net(), "0=0.5", wrong),
        "sweep": lambda: sweep(net(), ["0=0.5"], wrong),
        "maps": lambda: maps(net(), "0=0.5", wrong),
    }[function]
    with refused("example" if function in ("find_sites", "audit") else "data") as caught:
        call()
    assert ", 7) float32" in str(caught.value)
    assert "RuntimeError" in str(caught.value)


def test_options_that_a_function_does_not_have_are_those_of_load_data():
    with refused("text_column") as caught:
        uncertainty(TextNet(), "fc=0.5", pd.DataFrame({"body": ["fine"]}), tokenizer=WordLengths())
    assert "load_data(..., text_column=...)" in caught.value.remedy


def test_a_later_batch_of_another_shape_is_refused_before_any_pass():
    batches = [(torch.zeros(2, 4), torch.zeros(2)), (torch.zeros(2, 7), torch.zeros(2))]
    with refused("data") as caught:
        uncertainty(net(), "0=0.5", batches)
    assert "(1, 7) float32" in str(caught.value)


def test_dicts_without_keys_are_told_of_keys():
    images = [{"image": PAIR[0], "label": PAIR[1]}]
    with refused("data") as caught:
        uncertainty(net(), "0=0.5", images)
    assert "keys=('image', 'label')" in caught.value.remedy
    assert len(uncertainty(net(), "0=0.5", images, keys=("image", "label"), passes=3)) == 6
    assert len(uncertainty(net(), "0=0.5", load_data(images, keys=("image", "label")), passes=3)) == 6
    assert audit(net(), "0=0.5", load_data(images, keys=["image"])).ok
    with refused("example") as caught:
        find_sites(net(), {"image": PAIR[0]})
    assert "example['image']" in caught.value.remedy


def test_paths_are_no_examples():
    with refused("example") as caught:
        audit(net(), "0=0.5", "pictures")
    assert "load_data" in caught.value.remedy


def test_a_folder_that_is_not_there_comes_before_options_it_would_take(tmp_path):
    (tmp_path / "photos").mkdir()
    with refused("data") as caught:
        load_data(tmp_path / "fotos", mean="cifar10")
    assert "photos" in str(caught.value)


def test_examples_are_called_by_their_files(tmp_path):
    for number, colour in enumerate(("black", "white", "grey")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{number}.png")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    data = load_data(tmp_path, mean=0.5, std=0.5)
    assert "3 examples" in repr(data)
    assert uncertainty(net, "0=0.5", data, passes=2, progress=False).id.tolist() == ["0.png", "1.png", "2.png"]
    assert uncertainty(net, "0=0.5", data, passes=2, ids="index", progress=False).id.tolist() == [0, 1, 2]
