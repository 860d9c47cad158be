"""Names stand for models and data; options must fit them, and the first examples come from any form of data."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dropscope.loading.names import LoadedModel, few_inputs, load_data
from support.errors import refused

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
    assert "text_column and label_column" in caught.value.remedy


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
