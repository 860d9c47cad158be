"""Reading data: the same examples, the same keys in every form; order, padding, MONAI; then what is refused and how."""

from __future__ import annotations

import datasets
import monai.data
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset
from transformers import BatchEncoding, DataCollatorWithPadding

from dropscope.data.batches import Data
from dropscope.data.dataset import check_labels, read_data
from dropscope.model.inputs import Call
from support.errors import refused

N = 11
X = torch.randn(N, 3, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
PATIENTS = [f"p{i // 2}" for i in range(N)]
LENGTHS = [3, 5, 1, 4, 2, 6, 3, 5, 2, 4, 1]
ROWS = {
    "text": [f"text {i}" for i in range(N)],
    "idx": list(range(N)),
    "input_ids": [[10 * i + j + 1 for j in range(n)] for i, n in enumerate(LENGTHS)],
    "attention_mask": [[1] * n for n in LENGTHS],
    "label": Y.tolist(),
    "patient": PATIENTS,
}


class Items(Dataset):
    """A map-style data set of `make(i)`."""

    def __init__(self, make, n=N):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[i], int(Y[i])) for i in range(N)])


class Bare:
    """Not a torch Dataset, but it looks like one."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return X[i], int(Y[i])


def in_batches(size=4):
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, N, size)]


def loader(data=None, **options):
    return DataLoader(TensorDataset(X, Y) if data is None else data, **{"batch_size": 4, **options})


def row(i):
    return {name: values[i] for name, values in ROWS.items()}


FORMS = {
    "tensors": lambda: (X, Y),
    "list of labels": lambda: (X, Y.tolist()),
    "array of labels": lambda: (X, Y.numpy()),
    "series of labels": lambda: (X, pd.Series(Y.numpy())),
    "float labels": lambda: (X, Y.double()),
    "column of labels": lambda: (X, Y[:, None].to(torch.uint8)),
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "tuple": lambda: ((X,), Y),
    "dict": lambda: ({"x": X}, Y),
    "dict with labels": lambda: {"x": X, "labels": Y},
    "dict with label": lambda: {"x": X, "label": Y, "text": ROWS["text"]},
    "encoding": lambda: BatchEncoding({"x": X, "labels": Y}),
    "parameter": lambda: (torch.nn.Parameter(X.clone()), Y),
    "tensor data set": lambda: TensorDataset(X, Y),
    "items": lambda: Items(lambda i: (X[i], int(Y[i]))),
    "array items": lambda: Items(lambda i: (X[i].numpy(), Y.numpy()[i])),
    "list items": lambda: Items(lambda i: [X[i], Y[i]]),
    "dict items": lambda: Items(lambda i: {"x": X[i], "label": int(Y[i]), "text": "some"}),
    "no Dataset": Bare,
    "subset": lambda: Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), range(N)),
    "loader": loader,
    "loader of dicts": lambda: loader(Items(lambda i: {"x": X[i], "labels": Y[i], "text": "some"})),
    "shuffled loader": lambda: loader(shuffle=True),
    "dropping loader": lambda: loader(shuffle=True, drop_last=True),
    "loader with workers": lambda: loader(shuffle=True, num_workers=2, multiprocessing_context="fork"),
    "own-batch loader": lambda: DataLoader(in_batches(), batch_size=None),
    "stream": Stream,
    "loader of a stream": lambda: loader(Stream()),
    "list of batches": in_batches,
    "list of dicts": lambda: [{"x": x, "labels": y} for x, y in in_batches(3)],
    "generator": lambda: (batch for batch in in_batches(5)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_examples(form):
    plain = read_data((X, Y))
    found = read_data(FORMS[form](), batch_size=5)
    assert found.n == N
    assert torch.equal(found.keys, plain.keys)
    assert torch.equal(found.labels, Y)
    assert found.labels.dtype == torch.int64
    assert found.ids == list(range(N))
    assert found.groups is None
    assert found.keyed_by == "fingerprint"
    assert found.fingerprint == plain.fingerprint
    assert torch.equal(torch.cat([next(iter([*b.call.args, *b.call.kwargs.values()])) for b in found.batches]), X)
    assert all(type(t) is torch.Tensor and not t.requires_grad for b in found.batches for t in b.call.args)


UNLABELLED = {
    "tensor": lambda: X,
    "pair": lambda: (X, None),
    "single": lambda: (X,),
    "dict": lambda: {"x": X},
    "tensor data set": lambda: TensorDataset(X),
    "items": lambda: Items(lambda i: X[i]),
    "loader": lambda: loader(TensorDataset(X)),
    "batches": lambda: [x for x, _ in in_batches()],
}


@pytest.mark.parametrize("form", UNLABELLED)
def test_every_unlabelled_form(form):
    found = read_data(UNLABELLED[form](), batch_size=5)
    assert found.labels is None
    assert torch.equal(found.keys, read_data(X).keys)


def test_several_inputs_by_position_and_by_name():
    for data in (((X, X + 1), Y), Items(lambda i: ((X[i], X[i] + 1), Y[i])), [((X, X + 1), Y)], [[[X, X + 1], Y]]):
        found = read_data(data)
        assert torch.equal(found.batches[0].call.args[1], X + 1)
        assert torch.equal(found.keys, read_data(((X, X + 1), Y)).keys)
    named = read_data(({"a": X, "b": X + 1, "flag": False}, Y), batch_size=4)
    assert set(named.batches[0].call.kwargs) == {"a", "b", "flag"}
    assert torch.equal(named.batches[2].call.kwargs["b"], X[8:] + 1)


# --- batches ---


def test_batches_are_views():
    found = read_data((X, Y), batch_size=4)
    assert [batch.n for batch in found.batches] == [4, 4, 3]
    for data in (found, found.rebatched(3), found.rebatched(8), found.rebatched(100)):
        assert all(b.call.args[0].untyped_storage().data_ptr() == X.untyped_storage().data_ptr() for b in data.batches)
        assert all(b.labels.untyped_storage().data_ptr() == Y.untyped_storage().data_ptr() for b in data.batches)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 100])
@pytest.mark.parametrize("data", [(X, Y), in_batches(3), {"a": X, "b": X + 1, "flag": None, "labels": Y}])
def test_rebatched_holds_the_same(size, data):
    found = read_data(data, groups=PATIENTS, ids=[f"e{i}" for i in range(N)], batch_size=4)
    again = found.rebatched(size)
    assert [b.n for b in again.batches] == [min(size, N - i) for i in range(0, N, size)]
    assert again.ids == found.ids
    assert again.groups == PATIENTS
    assert torch.equal(again.keys, found.keys)
    assert torch.equal(again.labels, Y)
    assert (again.fingerprint, again.keyed_by) == (found.fingerprint, found.keyed_by)
    assert torch.equal(torch.cat([[*b.call.args, *b.call.kwargs.values()][0] for b in again.batches]), X)


def test_rebatched_never_joins_different_shapes():
    again = read_data([torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 7)]).rebatched(100)
    assert [tuple(b.call.args[0].shape) for b in again.batches] == [(4, 5), (2, 7)]


def test_fingerprint_of_the_data_tells_labels_and_order():
    plain = read_data((X, Y)).fingerprint
    assert read_data((X, (Y + 1) % 3)).fingerprint != plain
    assert read_data(X).fingerprint != plain
    assert read_data((X.flip(0), Y.flip(0))).fingerprint != plain


def test_label_maps_of_different_sizes_stay_apart():
    found = read_data([(torch.zeros(1, 1, s, s), torch.zeros(1, s, s)) for s in (4, 6)])
    with refused("labels") as caught:
        _ = found.labels
    assert "(4, 4), (6, 6)" in str(caught.value)


# --- ids, groups, order ---


def test_ids_are_kept_as_given():
    found = read_data((X, Y), ids=[f"e{i}" for i in range(N)], groups=PATIENTS, batch_size=4)
    assert found.ids[:2] == ["e0", "e1"]
    assert found.batches[1].ids == ["e4", "e5", "e6", "e7"]
    assert found.batches[1].groups == PATIENTS[4:8]
    assert found.keyed_by == "ids"
    assert torch.equal(read_data((X, Y), ids=np.arange(N) * 7).keys, torch.arange(N) * 7)
    assert torch.equal(read_data((X, Y), ids=torch.arange(N) * 7).keys, torch.arange(N) * 7)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_is_read_in_the_order_of_its_data_set(shuffle, drop_last):
    collated = []

    def collate(items):
        collated.append(len(items))
        return torch.stack([x for x, _ in items]) * 2, torch.tensor([int(y) for _, y in items])

    data = loader(shuffle=shuffle, drop_last=drop_last, collate_fn=collate)
    found = read_data(data, ids="index", groups=PATIENTS)
    assert collated == [4, 4, 3]
    assert found.keyed_by == "index"
    assert found.keys.tolist() == found.ids == list(range(N))
    assert found.groups == PATIENTS
    assert torch.equal(found.batches[0].call.args[0], X[:4] * 2)


SAMPLED = {
    "sampler": lambda: loader(sampler=SubsetRandomSampler(range(8))),
    "replacement": lambda: loader(sampler=torch.utils.data.RandomSampler(range(N), replacement=True)),
    "batch sampler": lambda: DataLoader(TensorDataset(X, Y), batch_sampler=[[0, 2], [1, 3]]),
    "stream": lambda: loader(Stream()),
    "own batches": lambda: DataLoader(in_batches(), batch_size=None),
}


@pytest.mark.parametrize("form", SAMPLED)
@pytest.mark.parametrize("named", [{"ids": "index"}, {"ids": range(N)}, {"groups": PATIENTS}])
def test_a_loader_with_its_own_order_takes_no_ids_by_position(form, named):
    with refused("data") as caught:
        read_data(SAMPLED[form](), **named)
    assert "ids='field'" in caught.value.remedy
    assert set(read_data(SAMPLED[form]()).keys.tolist()) <= set(read_data((X, Y)).keys.tolist())


def test_a_loader_with_its_own_order_yields_ids():
    data = loader(Items(lambda i: {"x": X[i], "label": Y[i], "name": f"e{i}"}), sampler=[5, 2, 7])
    found = read_data(data, ids="name", groups="name")
    assert found.ids == found.groups == ["e5", "e2", "e7"]
    assert torch.equal(found.keys, read_data((X, Y), ids=[f"e{i}" for i in range(N)]).keys[[5, 2, 7]])
    assert set(found.batches[0].call.kwargs) == {"x"}


@pytest.mark.parametrize("form", ["stream", "list of batches", "generator"])
def test_an_iterable_has_no_index(form):
    with refused("ids") as caught:
        read_data(FORMS[form](), ids="index")
    assert caught.value.received == "index"
    assert read_data(FORMS[form](), ids=range(100, 100 + N)).keys.tolist() == list(range(100, 100 + N))


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    noisy = Items(lambda i: (X[i] + torch.randn(3, 4) + np.random.rand(), 0))  # noqa: NPY002
    read_data(loader(shuffle=True))
    read_data(loader(noisy, sampler=[1, 2]))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


# --- Hugging Face ---


@pytest.mark.parametrize("size", [1, 4, 256])
@pytest.mark.parametrize("layout", [None, "torch", "numpy"])
def test_a_datasets_dataset(size, layout):
    data = datasets.Dataset.from_dict(ROWS).with_format(layout)
    found = read_data(data, groups="patient", batch_size=size)
    assert torch.equal(found.labels, Y)
    assert found.groups == PATIENTS
    for batch in found.batches:
        assert set(batch.call.kwargs) == {"input_ids", "attention_mask"}
        widest = max(LENGTHS[i] for i in batch.ids)
        assert batch.call.kwargs["input_ids"].shape == (batch.n, widest)
        for i, tokens, mask in zip(
            batch.ids, batch.call.kwargs["input_ids"], batch.call.kwargs["attention_mask"], strict=True
        ):
            assert tokens.tolist() == ROWS["input_ids"][i] + [0] * (widest - LENGTHS[i])
            assert mask.sum() == LENGTHS[i]
    assert torch.equal(found.keys, read_data(data, batch_size=7).keys)


def test_padding_is_the_same_by_any_road():
    """Rows, items, a collator that pads with another token: the same examples."""
    plain = read_data(datasets.Dataset.from_dict(ROWS))
    items = Items(lambda i: {name: row(i)[name] for name in ("input_ids", "attention_mask", "label")})
    wider = {
        "input_ids": torch.tensor([tokens + [9] * (8 - len(tokens)) for tokens in ROWS["input_ids"]]),
        "attention_mask": torch.tensor([mask + [0] * (8 - len(mask)) for mask in ROWS["attention_mask"]]),
    }
    for data in (items, (wider, Y), BatchEncoding(wider), datasets.Dataset.from_dict(ROWS).with_format("torch")):
        assert torch.equal(read_data(data, batch_size=3).keys, plain.keys)
    other = read_data(datasets.Dataset.from_dict(ROWS), pad_token_id=50256)
    assert torch.equal(other.keys, plain.keys)
    assert other.batches[0].call.kwargs["input_ids"][2, 1] == 50256
    assert other.batches[0].call.kwargs["attention_mask"][2, 1] == 0


def test_a_loader_with_a_hugging_face_collator():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    data = datasets.Dataset.from_dict(ROWS).select_columns(["input_ids", "attention_mask", "label"])
    found = read_data(DataLoader(data, batch_size=4, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer)))
    assert torch.equal(found.keys, read_data(data).keys)
    assert torch.equal(found.labels, Y)


def test_a_label_per_token_is_padded_with_the_usual_mark():
    data = datasets.Dataset.from_dict({**ROWS, "label": [[0] * n for n in LENGTHS]})
    found = read_data(data, batch_size=N)
    assert (found.labels == -100).sum() == (found.batches[0].call.kwargs["attention_mask"] == 0).sum()
    check_labels(found.labels, 2, ignore_label=-100)


def test_a_datasets_dataset_by_keys():
    data = datasets.Dataset.from_dict({"pixels": X.tolist(), "class": Y.tolist(), "idx": list(range(N))})
    found = read_data(data, keys=("pixels", "class"))
    assert torch.equal(found.keys, read_data((X, Y)).keys)
    assert torch.equal(found.labels, Y)


# --- MONAI ---


def volumes(i):
    image = monai.data.MetaTensor(torch.full((1, 4, 4, 4), float(i)), meta={"file": f"{i}.nii"})
    label = monai.data.MetaTensor((torch.arange(64).reshape(1, 4, 4, 4) % 3).float())
    return {"image": image, "label": label, "case": f"case {i}", "extra": {"deep": 1}}


@pytest.mark.parametrize(
    "data",
    [
        [volumes(i) for i in range(5)],
        monai.data.Dataset([volumes(i) for i in range(5)]),
        monai.data.DataLoader(monai.data.Dataset([volumes(i) for i in range(5)]), batch_size=2, shuffle=True),
    ],
    ids=["items in a loader", "data set", "loader"],
)
def test_monai_dicts(data):
    data = monai.data.DataLoader(data, batch_size=3) if isinstance(data, list) else data
    found = read_data(data, keys=("image", "label"), groups="case", batch_size=2)
    plain = torch.arange(5.0).reshape(5, 1, 1, 1, 1).expand(5, 1, 4, 4, 4)
    assert torch.equal(found.keys, read_data(plain).keys)
    assert found.groups == [f"case {i}" for i in range(5)]
    assert found.labels.shape == (5, 4, 4, 4)
    assert all(type(b.call.args[0]) is torch.Tensor and type(b.labels) is torch.Tensor for b in found.batches)


def test_keys_of_several_inputs_go_by_name():
    found = read_data({"a": X, "b": X + 1, "c": X, "y": Y}, keys=(("a", "b"), "y"))
    assert list(found.batches[0].call.kwargs) == ["a", "b"]
    assert torch.equal(found.labels, Y)
    assert read_data({"a": X, "y": Y}, keys=("a", None)).labels is None


# --- labels ---


def test_label_maps():
    maps = torch.randint(0, 3, (N, 4, 5))
    for given in (maps, maps[:, None], maps.to(torch.uint8), maps.float()):
        assert torch.equal(read_data((torch.randn(N, 2, 4, 5), given)).labels, maps)


def test_yes_or_no_per_label():
    several = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(read_data((X[:2], several)).labels, several.long())
    assert torch.equal(read_data((X[:3], torch.eye(3).bool())).labels, torch.eye(3).long())


@pytest.mark.parametrize(
    ("labels", "classes", "ignore", "received", "remedy"),
    [
        ([0, 1, 3], 3, None, "3 (1 such of 3)", "the model's classes"),
        ([1, 2, 3], 3, None, "3 (1 such of 3)", "labels - 1"),
        ([0, -1, -1], 3, None, "-1 (2 such of 3)", "ignore_label=-1"),
        ([0, -1, -100], 3, -100, "-1 (1 such of 3)", "ignore_label=-1"),
        ([[0, 255], [1, 2]], 3, None, "255 (1 such of 4)", "ignore_label=255"),
    ],
)
def test_labels_beyond_the_classes(labels, classes, ignore, received, remedy):
    with refused("labels") as caught:
        check_labels(torch.tensor(labels), classes, ignore_label=ignore)
    assert caught.value.received == received
    assert remedy in caught.value.remedy
    assert "0 to 2" in caught.value.what


def test_labels_within_the_classes():
    check_labels(torch.tensor([0, 1, 2]), 3)
    check_labels(torch.tensor([[0, 255], [2, -100]]), 256, ignore_label=-100)


# --- refused ---

ONE_HOT = torch.nn.functional.one_hot(Y)


@pytest.mark.parametrize(
    ("data", "name", "says"),
    [
        ([], "data", "got an empty list"),
        (iter([]), "data", "a generator is used up"),
        ((X[:0], Y[:0]), "inputs", "shape (0, 3, 4)"),
        (Items(None, 0), "data", "got an empty Items"),
        ((X, Y[:5]), "labels", "got 5 for 11 inputs"),
        ((X, 3), "labels", "got one number for 11 inputs"),
        ([(X, Y), (X, Y[:3])], "labels", "batch 1 of data"),
        ((X, Y + 0.5), "labels", "got [0.5, 1.5, 2.5"),
        ((X, torch.full((N,), torch.nan)), "labels", "got [nan"),
        ((X, torch.full((N,), torch.inf)), "labels", "got [inf"),
        ((X, torch.full((N,), 0.3)), "labels", "regression is not supported yet"),
        ((X, torch.full((N, 1), 0.3)), "labels", "regression is not supported yet"),
        ((X, ["cat"] * N), "labels", "got 'cat'"),
        ((X, [None] * N), "labels", "got None"),
        ((X, X), "labels", "((x1, x2), None)"),
        ((X, ONE_HOT), "labels", "labels.argmax(1)"),
        ((X, ONE_HOT.float()), "labels", "labels.argmax(1)"),
        (
            (torch.randn(2, 1, 4, 4), torch.nn.functional.one_hot(torch.zeros(2, 4, 4).long(), 3).movedim(-1, 1)),
            "labels",
            "labels.argmax(1)",
        ),
        (((X, X[:3]), Y), "data", "shapes (11, 3, 4), (3, 3, 4)"),
        (({"a": X, "b": X[:3]}, Y), "data", "shapes (11, 3, 4), (3, 3, 4)"),
        ((X, X, Y), "data", "got a tuple of 3"),
        ((), "data", "got a tuple of 0"),
        (TensorDataset(X, X, Y), "data", "got a tuple of 3"),
        ([X, Y], "data", "a tuple (inputs, labels), not a list"),
        ([(X, Y), X], "data", "batch 1 of data"),
        ([(X, Y), (X.double(), Y)], "data", "torch.float64"),
        (((X, X.to("meta")), None), "data", "['cpu', 'meta']"),
        (3, "data", "got int"),
        ("val.csv", "data", "got str"),
        ({"x": X.tolist()}, "data", "got list of list"),
        ({"x": [X, X]}, "data", "got list of Tensor"),
        ({"text": ["a"]}, "inputs", "got ((), {})"),
        (pd.DataFrame({"x": [1.0], "label": [0]}), "data", "got Series"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict(ROWS)}), "data", "got Dataset"),
        (datasets.Dataset.from_dict({"text": ["a"], "label": [0]}), "data", "['text', 'label']"),
        (
            datasets.Dataset.from_dict({k: v for k, v in ROWS.items() if k != "attention_mask"}),
            "input_ids",
            "attention_mask",
        ),
        (datasets.Dataset.from_dict({**ROWS, "label": [None, *ROWS["label"][1:]]}), "labels", "got None"),
        (datasets.Dataset.from_dict({**ROWS, "label": [*ROWS["label"][1:], None]}), "label", "NoneType"),
        (Items(lambda i: (torch.zeros(3, i), 0)), "data", "collate_fn"),
        (Items(lambda i: {"x": X[i]} if i else {"x": X[i], "z": X[i]}), "data", "got 'z'"),
        (Items(lambda i: (X[i], 0) if i else (X[i], 0, 0)), "data", "zip()"),
        (Items(lambda i: (object(), 0)), "data", "got object"),
        ([(X[0], 0)], "labels", "single examples go into a DataLoader"),
    ],
)
def test_refused(data, name, says):
    with refused(name) as caught:
        read_data(data)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ({"ids": range(3)}, "ids", "got 3 for 11 examples"),
        ({"ids": [0, *range(N - 1)]}, "ids", "got 0 for examples 0 and 1"),
        ({"ids": ["1.0", 1.0, *range(10, 19)]}, "ids", "got 1.0 for examples 0 and 1"),
        ({"ids": 5}, "ids", "got int"),
        ({"groups": PATIENTS[:4]}, "groups", "got 4 for 11 examples"),
        ({"groups": [[1]] * N}, "groups", "got [1]"),
        ({"groups": "patient"}, "groups", "got 'patient'"),
        ({"ids": "indx"}, "ids", "got 'indx'"),
        ({"keys": ("image", "label")}, "keys", "without keys"),
        ({"keys": "image"}, "keys", "keys=('image', 'label')"),
        ({"keys": ("image", "label", "more")}, "keys", "keys=('image', 'label')"),
        ({"keys": (3, "label")}, "keys", "keys=('image', 'label')"),
        ({"batch_size": 0}, "batch_size", "got 0"),
        ({"batch_size": 2.0}, "batch_size", "got 2.0"),
    ],
)
def test_refused_options(options, name, says):
    with refused(name) as caught:
        read_data((X, Y), **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("data", "options", "name", "says"),
    [
        ({"image": X, "label": Y}, {"keys": ("imag", "label")}, "keys", "got 'imag'. Did you mean 'image'"),
        ({"image": X, "label": Y}, {"keys": ("image", "lable")}, "keys", "got 'lable'. Did you mean 'label'"),
        ({"image": X, "patient": PATIENTS}, {"groups": "patients"}, "groups", "Did you mean 'patient'"),
        ({"image": X, "patient": PATIENTS}, {"ids": "patients"}, "ids", "Did you mean 'patient'"),
        ({"image": X, "patient": PATIENTS[:3]}, {"groups": "patient"}, "groups", "got 3 for 11 examples"),
        (datasets.Dataset.from_dict(ROWS), {"groups": "patients"}, "groups", "Did you mean 'patient'"),
        (datasets.Dataset.from_dict(ROWS), {"keys": ("input_id", "label")}, "keys", "Did you mean 'input_ids'"),
        (datasets.Dataset.from_dict(ROWS), {"ids": "label"}, "ids", "got 0 for examples 0 and 3"),
    ],
)
def test_refused_names(data, options, name, says):
    with refused(name) as caught:
        read_data(data, **options)
    assert says in str(caught.value)


def test_refused_before_any_fingerprint(monkeypatch):
    monkeypatch.setattr(Call, "keys", lambda *_: pytest.fail("worked before it checked"))
    with refused("groups"):
        read_data((X, Y), groups=[1])


def test_a_record_is_frozen():
    found = read_data((X, Y))
    assert isinstance(found, Data)
    with pytest.raises(AttributeError):
        found.fingerprint = "other"
