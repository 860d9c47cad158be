"""Batches and data sets: what is cut, joined, moved and sorted by length keeps its examples, keys and order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dropscope.data.batches import PADDING, Batch, Data, fewest_batches
from dropscope.data.dataset import read_data
from dropscope.model.inputs import Call

LENGTHS = [3, 9, 3, 8, 9, 3, 2, 8]
CPU = torch.device("cpu")


def tokens(lengths: list[int], width: int | None = None, first: int = 0) -> dict[str, Tensor]:
    """Right-padded texts; token j of example i is 100 (i + first) + j + 1."""
    width = width or max(lengths)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for i, n in enumerate(lengths):
        ids[i, :n], mask[i, :n] = 100 * (i + first) + torch.arange(n) + 1, 1
    return {"input_ids": ids, "attention_mask": mask}


def texts(labels: Tensor | None = None, batch_size: int = 256) -> Data:
    data = tokens(LENGTHS) if labels is None else (tokens(LENGTHS), labels)
    return read_data(data, groups=[f"g{n}" for n in LENGTHS], batch_size=batch_size)


def batch() -> Batch:
    x = torch.arange(12.0).reshape(4, 3)
    return Batch(Call((x,), {"scale": torch.tensor(2.0)}), torch.arange(4), torch.arange(4) + 10, list("abcd"), None)


# --- a batch ----------------------------------------------------------------------------------------------------------


def test_cut_gives_views_and_take_gives_copies_of_the_same_examples() -> None:
    whole = batch()
    cut, taken = whole.cut(1, 3), whole.take([1, 2])
    for part in (cut, taken):
        assert torch.equal(part.call.args[0], whole.call.args[0][1:3])
        assert part.call.kwargs["scale"] == 2
        assert part.labels is not None
        assert part.labels.tolist() == [1, 2]
        assert (part.keys.tolist(), part.ids, part.groups, part.rows) == ([11, 12], ["b", "c"], None, None)
    shared = whole.call.args[0].untyped_storage().data_ptr()
    assert cut.call.args[0].untyped_storage().data_ptr() == shared
    assert taken.call.args[0].untyped_storage().data_ptr() != shared


def test_take_goes_in_any_order() -> None:
    assert batch().take([3, 0, 0]).ids == ["d", "a", "a"]


def test_rows_and_groups_go_along() -> None:
    sorted_ = texts().length_sorted().batches[-1]
    assert sorted_.rows is not None
    for part in (sorted_.cut(1, 2), sorted_.take([1])):
        assert part.rows is not None
        assert part.groups == [sorted_.groups[1]]  # type: ignore[index]
        assert part.rows.tolist() == [int(sorted_.rows[1])]


@pytest.mark.parametrize(
    ("x", "chosen"),
    [
        ([[1, 2], [1, 2], [1, 3], [4, 4]], [0, 2]),  # the first that differs
        ([[1, 2], [1, 2]], [0, 1]),  # all alike: the first two
        ([[1, 2]], [0]),
    ],
)
def test_the_first_two_differ_where_any_do(x: list[list[int]], chosen: list[int]) -> None:
    assert read_data(torch.tensor(x)).batches[0].first_two().ids == chosen


def test_the_first_two_differ_in_any_of_several_inputs() -> None:
    same, other = torch.zeros(3, 2), torch.tensor([0, 0, 1])
    assert read_data({"a": same, "b": other}).batches[0].first_two().ids == [0, 2]


def test_a_signature_is_of_one_example() -> None:
    x = torch.zeros(5, 3)
    signature = read_data({"a": x, "b": x}).batches[0].signature
    assert read_data({"b": x[:2], "a": x[:2]}).batches[0].signature == signature
    assert read_data({"a": x, "b": x.double()}).batches[0].signature != signature
    assert read_data({"a": x, "b": x[:, :2]}).batches[0].signature != signature
    assert read_data(x).batches[0].signature != read_data({"x": x}).batches[0].signature


LEFT = torch.tensor([[0, 1, 1], [1, 1, 1]])
BLANK = torch.tensor([[0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(2, 3),
        {"input_ids": torch.ones(2, 3).long()},
        {"pixels": torch.zeros(2, 3), "attention_mask": torch.ones(2, 3)},
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": LEFT},
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": BLANK},
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 1, 3, 3)},
    ],
    ids=["tensor", "no mask", "no tokens", "left", "blank", "4d"],
)
def test_only_right_padded_tokens_have_lengths(inputs: Tensor | dict[str, Tensor]) -> None:
    assert read_data(inputs).batches[0].lengths is None


def test_lengths() -> None:
    lengths = texts().batches[0].lengths
    assert lengths is not None
    assert lengths.tolist() == LENGTHS


# --- a data set -------------------------------------------------------------------------------------------------------


def test_padding_is_the_share_of_tokens() -> None:
    assert texts().padding == pytest.approx(1 - sum(LENGTHS) / (9 * len(LENGTHS)))
    assert texts(batch_size=1).padding == pytest.approx(1 - sum(LENGTHS) / (9 * len(LENGTHS)))
    assert read_data(tokens([4, 4])).padding == 0


def test_on_moves_inputs_and_keys_and_leaves_the_rest() -> None:
    data = texts(torch.arange(8) % 2, batch_size=3)
    moved = data.on(torch.device("meta"))
    for before, after in zip(data.batches, moved.batches, strict=True):
        assert {t.device.type for t in (*after.call.tensors, after.keys)} == {"meta"}
        assert after.labels is before.labels
        assert (after.ids, after.groups) == (before.ids, before.groups)
    assert (moved.fingerprint, moved.keyed_by) == (data.fingerprint, data.keyed_by)
    assert torch.equal(data.on(CPU).keys, data.keys)


# --- sorted by length -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_sorted_by_length_holds_the_same_examples(batch_size: int) -> None:
    data = texts(torch.arange(8), batch_size=batch_size)
    ordered = data.length_sorted()
    order = ordered.order
    assert data.order is None
    assert order is not None
    assert order.tolist() == [6, 0, 2, 5, 3, 7, 1, 4]  # equal lengths keep their order
    assert torch.equal(ordered.keys, data.keys[order])
    assert ordered.ids == order.tolist()
    assert ordered.groups == [f"g{LENGTHS[i]}" for i in order]
    assert ordered.labels is not None
    assert torch.equal(ordered.labels, order)
    assert (ordered.fingerprint, ordered.keyed_by, ordered.n) == (data.fingerprint, data.keyed_by, 8)


def test_sorted_by_length_cuts_each_batch_to_its_longest_text() -> None:
    ordered = texts().length_sorted()
    assert ordered.padding <= PADDING < texts().padding
    assert [part.ids for part in ordered.batches] == [[6, 0, 2, 5], [3, 7], [1, 4]]
    for part in ordered.batches:
        lengths = part.lengths
        assert lengths is not None
        ids, mask = part.call.kwargs["input_ids"], part.call.kwargs["attention_mask"]
        assert ids.shape == mask.shape == (part.n, lengths.max())
        for i, row in zip(part.ids, ids, strict=True):
            expected = [100 * i + j + 1 for j in range(LENGTHS[i])]
            assert row.tolist() == expected + [0] * (len(row) - len(expected))


def test_sorted_by_length_keeps_the_keys_of_the_examples() -> None:
    """Padding is no part of a key, so another width gives the same noise."""
    for part in texts().length_sorted().batches:
        assert torch.equal(part.keys, part.call.keys())


def test_batches_of_different_widths_are_sorted_together() -> None:
    data = read_data([tokens([5, 2], 5), tokens([2, 5], 7, first=2)])
    (short, long) = data.length_sorted().batches
    assert (short.ids, long.ids) == ([1, 2], [0, 3])
    assert [tuple(part.call.kwargs["input_ids"].shape) for part in (short, long)] == [(2, 2), (2, 5)]
    assert long.call.kwargs["input_ids"][1].tolist() == [301, 302, 303, 304, 305]
    assert torch.equal(torch.cat([short.keys, long.keys]), data.keys[[1, 2, 0, 3]])


def test_a_text_that_was_padded_less_than_its_new_batch_is_padded_again() -> None:
    data = read_data([tokens([19], 19), tokens([20] * 9, 20, first=1)])
    (joined,) = data.length_sorted().batches
    assert joined.call.kwargs["input_ids"].shape == (10, 20)
    assert joined.call.kwargs["attention_mask"].sum(1).tolist() == [19] + [20] * 9


def test_the_size_of_a_batch_is_limited_by_its_length() -> None:
    asked: list[int] = []

    def at_most(length: int) -> int:
        asked.append(length)
        return 2 if length < 9 else 1

    ordered = texts().length_sorted(at_most)
    assert all(part.n <= (2 if part.call.kwargs["input_ids"].shape[1] < 9 else 1) for part in ordered.batches)
    assert set(asked) <= set(LENGTHS)
    assert ordered.order is not None
    assert ordered.order.tolist() == [6, 0, 2, 5, 3, 7, 1, 4]


def test_sorting_twice_is_sorting_once() -> None:
    once = texts().length_sorted()
    twice = once.length_sorted()
    assert once.order is not None
    assert twice.order is not None
    assert torch.equal(twice.order, once.order)
    assert [part.ids for part in twice.batches] == [part.ids for part in once.batches]


@pytest.mark.parametrize(
    "data",
    [
        (torch.zeros(3, 4), torch.arange(3)),
        {"input_ids": torch.ones(2, 3).long()},
        {"input_ids": torch.ones(2, 3).long(), "attention_mask": LEFT},
        [tokens([2, 3]), {"input_ids": torch.ones(2, 3).long(), "attention_mask": LEFT}],
        (tokens([3, 1, 2]), torch.zeros(3, 3).long()),  # a label per token
    ],
    ids=["tensors", "no mask", "left", "one batch left", "labels per token"],
)
def test_data_that_cannot_be_cut_is_left_alone(data: object) -> None:
    read = read_data(data)
    assert read.length_sorted() is read
    assert read.order is None


@pytest.mark.parametrize(
    ("lengths", "ends"),
    [
        ([7], [1]),
        ([5, 5, 5], [3]),
        ([19, 20, 20, 20], [4]),  # little padding is accepted
        ([1, 1, 100], [2, 3]),
        ([10, 20, 40], [1, 2, 3]),
    ],
)
def test_the_fewest_batches_with_little_padding(lengths: list[int], ends: list[int]) -> None:
    assert fewest_batches(np.array(lengths)) == ends


@pytest.mark.parametrize("seed", range(5))
def test_padding_is_little_and_one_batch_less_has_too_much(seed: int) -> None:
    rising = np.sort(np.random.default_rng(seed).integers(1, 12, 40))
    ends = fewest_batches(rising)

    def padding(cuts: list[int]) -> float:
        parts = [rising[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
        return 1 - rising.sum() / sum(part.max() * len(part) for part in parts)

    assert ends[-1] == 40
    assert padding(ends) <= PADDING + 1e-12
    assert all(padding([*ends[:i], *ends[i + 1 :]]) > PADDING for i in range(len(ends) - 1))
