"""Inputs of a model: an example's fingerprint depends on its own values and nothing else; ids; slices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from dropscope.errors import BadInput
from dropscope.model import inputs


def keys_of(*args, **kwargs):
    return inputs.example_keys(args, kwargs)


def tokens(lengths, width, side="right", fill=0):
    ids, mask = torch.full((len(lengths), width), fill), torch.zeros(len(lengths), width, dtype=torch.long)
    for i, n in enumerate(lengths):
        where = slice(0, n) if side == "right" else slice(width - n, width)
        ids[i, where], mask[i, where] = torch.arange(n) + 10 * i + 1, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_independent_of_batch_and_order(dtype):
    x = (torch.randn(9, 3, 4) * 10).to(dtype)
    keys = keys_of(x)
    order = torch.randperm(9)
    assert torch.equal(keys_of(x[order]), keys[order])
    assert torch.equal(torch.cat([keys_of(x[:2]), keys_of(x[2:])]), keys)
    assert torch.equal(torch.cat([keys_of(x[i : i + 1]) for i in range(9)]), keys)


def test_equal_to_a_number_written_down():
    """A change here changes every mask of every stored run."""
    assert keys_of(torch.arange(6.0).reshape(2, 3)).tolist() == [-7781706942403487748, -5236879890201545867]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("fill", [0, 50256])
def test_independent_of_padding(side, fill):
    keys = keys_of(**tokens([3, 5, 1], 5))
    assert torch.equal(keys_of(**tokens([3, 5, 1], 11, side, fill)), keys)
    assert len(set(keys.tolist())) == 3


def test_a_decoder_has_its_own_padding():
    source, target = tokens([2, 4], 4), tokens([4, 3], 4)
    named = {f"decoder_{name}": value for name, value in target.items() if name != "token_type_ids"}
    wider = {name: torch.cat([value, torch.zeros(2, 2, dtype=torch.long)], 1) for name, value in named.items()}
    assert torch.equal(keys_of(**source, **named), keys_of(**source, **wider))


def test_labels_are_no_input():
    batch = tokens([3, 5], 5)
    assert torch.equal(keys_of(**batch, labels=torch.tensor([0, 1])), keys_of(**batch))


def test_sensitive_to_dtype_shape_and_value():
    x = torch.zeros(1, 4)
    different = [x, x.double(), x.int(), x.reshape(1, 2, 2), x + 1e-30]
    assert len({int(keys_of(each)) for each in different}) == len(different)


def test_layout_in_memory_does_not_matter():
    x = torch.randn(4, 3, 5, 5)
    strided = torch.randn(4, 3, 10, 5)[:, :, ::2]
    assert torch.equal(keys_of(x.to(memory_format=torch.channels_last)), keys_of(x))
    assert torch.equal(keys_of(x.transpose(2, 3)), keys_of(x.transpose(2, 3).contiguous()))
    assert torch.equal(keys_of(strided), keys_of(strided.contiguous()))
    assert torch.equal(keys_of(x[:, :1].expand(4, 3, 5, 5)), keys_of(x[:, :1].expand(4, 3, 5, 5).contiguous()))
    z = torch.randn(4, 3, dtype=torch.complex64)
    assert torch.equal(keys_of(z.conj()), keys_of(z.conj().resolve_conj()))
    assert torch.equal(keys_of(x.clone().requires_grad_()), keys_of(x))


def test_the_name_of_a_lone_input_and_the_order_of_names_do_not_matter():
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(keys_of(x), keys_of(pixels=x))
    assert torch.equal(keys_of(a=x, b=y), keys_of(b=y, a=x))
    assert not torch.equal(keys_of(a=x, b=y), keys_of(a=y, b=x))


def test_constants_and_shared_tensors_belong_to_no_example():
    x, shared = torch.randn(4, 3), torch.randn(7)
    assert torch.equal(keys_of(x, shared, flag=True), keys_of(x))


def test_no_collisions_among_near_neighbours():
    keys = keys_of(torch.arange(20_000).reshape(-1, 1))
    assert len(keys.unique()) == 20_000


def test_metatensor_like_its_plain_tensor():
    from monai.data import MetaTensor

    x = torch.randn(3, 1, 4, 4)
    assert torch.equal(keys_of(MetaTensor(x)), keys_of(x))


def test_id_keys_are_whole_numbers_as_they_are_whatever_holds_them():
    expected = [3, -1, 2**62]
    for ids in (expected, torch.tensor(expected), np.array(expected), list(torch.tensor(expected))):
        assert inputs.id_keys(ids).tolist() == expected


def test_id_keys_of_texts_and_of_numbers_beyond_64_bits():
    keys = inputs.id_keys(["a", "b", "3", 3, 2**63, 2**64 + 5, np.uint64(2**64 - 1)])
    assert len(keys.unique()) == 7
    assert torch.equal(inputs.id_keys(["a", np.str_("a")]), inputs.id_keys(["a", "a"]))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_take_goes_through_nested_parts_and_named_tuples():
    x = torch.arange(6.0).reshape(3, 2)
    args, kwargs = inputs.take((Pair(x, x + 1), [x]), {"d": {"x": x}, "flag": True}, [2, 0])
    assert isinstance(args[0], Pair)
    assert torch.equal(args[0].right, x[[2, 0]] + 1)
    assert torch.equal(args[1][0], x[[2, 0]])
    assert torch.equal(kwargs["d"]["x"], x[[2, 0]])
    assert kwargs["flag"] is True


def test_arguments_by_form():
    x = torch.zeros(2, 3)
    assert inputs.arguments(x) == ((x,), {})
    assert inputs.arguments((x, x)) == ((x, x), {})
    assert list(inputs.arguments({"x": x, "labels": x})[1]) == ["x"]
    with pytest.raises(BadInput, match="what you call the model with"):
        inputs.arguments("x")


@pytest.mark.parametrize("args", [(), (torch.zeros(0, 3),), (torch.tensor(1.0),)])
def test_a_batch_has_an_example(args):
    with pytest.raises(BadInput):
        inputs.count_examples(args, {})
