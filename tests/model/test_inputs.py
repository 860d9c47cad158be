"""A call of a model: slices, copies, moves; and that the key of an example depends on its own values alone."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers import BatchEncoding
from transformers.modeling_outputs import SequenceClassifierOutput

from dropscope.errors import AuditFailed
from dropscope.model import inputs
from dropscope.model.inputs import Call
from support.errors import refused


def keys_of(*args, **kwargs):
    return Call(args, kwargs).keys()


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


def test_several_texts_in_an_example_have_their_padding_each():
    def choices(length, first):
        ids, mask = torch.zeros(1, 2, length, dtype=torch.long), torch.zeros(1, 2, length, dtype=torch.long)
        for row, part in enumerate((range(1, first + 1), range(first + 1, 6))):
            ids[0, row, : len(part)], mask[0, row, : len(part)] = torch.tensor(list(part)), 1
        return {"input_ids": ids, "attention_mask": mask}

    assert torch.equal(keys_of(**choices(4, 2)), keys_of(**choices(9, 2)))
    assert not torch.equal(keys_of(**choices(4, 2)), keys_of(**choices(4, 3)))


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
    taken = Call((Pair(x, x + 1), [x]), {"d": {"x": x}, "flag": True}).take([2, 0])
    assert isinstance(taken.args[0], Pair)
    assert torch.equal(taken.args[0].right, x[[2, 0]] + 1)
    assert torch.equal(taken.args[1][0], x[[2, 0]])
    assert torch.equal(taken.kwargs["d"]["x"], x[[2, 0]])
    assert taken.kwargs["flag"] is True


def test_arguments_by_form():
    x = torch.zeros(2, 3)
    for inputs_, args, names in ((x, (x,), []), ((x, x), (x, x), []), ([x, x], (x, x), [])):
        call = Call.of(inputs_)
        assert (call.args, list(call.kwargs)) == (args, names)
    named = Call.of({"x": x, "labels": x, "label": x})
    assert (named.args, list(named.kwargs)) == ((), ["x"])
    encoded = Call.of(BatchEncoding({"x": x, "labels": x}))
    assert (encoded.args, list(encoded.kwargs)) == ((), ["x"])
    assert Call.of(named) is named
    with refused("inputs") as caught:
        Call.of("x")
    assert caught.value.received == "str"
    with refused("example"):
        Call.of(3, "example")


@pytest.mark.parametrize("args", [(), (torch.zeros(0, 3),), (torch.tensor(1.0),)])
def test_a_batch_has_an_example(args):
    with refused("inputs"):
        _ = Call(args).examples


# --- what a call does with its tensors --------------------------------------------------------------------------------

A, SHARED = torch.arange(6.0).reshape(3, 2), torch.arange(2.0)


def both() -> Call:
    return Call((A, SHARED, 5), {"b": A + 1, "scalar": torch.tensor(2.0), "none": None})


def test_examples_are_counted_along_the_first_tensor():
    assert both().examples == 3
    assert Call((), {"x": (None, [SHARED])}).examples == 2


def test_tensors_by_position_come_first():
    assert [tuple(t.shape) for t in both().tensors] == [(3, 2), (2,), (3, 2), ()]


def test_map_goes_over_tensors_alone():
    doubled = both().map(lambda t: t * 2)
    assert torch.equal(doubled.args[0], A * 2)
    assert (doubled.args[2], doubled.kwargs["none"]) == (5, None)
    assert doubled.kwargs["scalar"] == 4
    shapes = both().map(lambda t: tuple(t.shape))
    assert (shapes.args, shapes.kwargs["b"]) == (((3, 2), (2,), 5), (3, 2))


def test_take_leaves_shared_tensors_alone():
    taken = both().take([2, 2, 0])
    assert taken.args[0].tolist() == [[4, 5], [4, 5], [0, 1]]
    assert taken.args[1] is SHARED
    assert taken.kwargs["scalar"] == 2


def test_repeat_puts_one_batch_after_the_other():
    repeated = both().repeat(2)
    assert torch.equal(repeated.args[0], torch.cat([A, A]))
    assert torch.equal(repeated.kwargs["b"], torch.cat([A + 1, A + 1]))
    assert repeated.args[1] is SHARED
    assert repeated.examples == 6
    assert torch.equal(repeated.keys(), both().keys().repeat(2))


def test_a_second_example_is_the_first_reversed():
    call = Call(
        (torch.arange(6).reshape(1, 2, 3),), {"ids": torch.tensor([[1, 2]]), "shared": SHARED, "n": torch.tensor([7])}
    )
    two = call.with_second_example()
    assert two.args[0].tolist() == [[[0, 1, 2], [3, 4, 5]], [[5, 4, 3], [2, 1, 0]]]
    assert two.kwargs["ids"].tolist() == [[1, 2], [2, 1]]
    assert two.kwargs["n"].tolist() == [7, 7]
    assert two.kwargs["shared"] is SHARED


def test_to_moves_every_tensor():
    moved = both().to(torch.device("meta"))
    assert {t.device.type for t in moved.tensors} == {"meta"}
    assert (moved.args[2], moved.kwargs["none"]) == (5, None)


def test_a_model_that_writes_into_its_inputs_gets_a_copy():
    def model(x, y, *, scale):
        return x.mul_(0), y, scale

    x = torch.ones(2, 3)
    zeros, same, scale = Call((x, "text"), {"scale": 3}).run(model)
    assert (zeros.sum(), same, scale) == (0, "text", 3)
    assert torch.equal(x, torch.ones(2, 3))


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError, KeyError, AttributeError])
def test_a_model_that_does_not_take_its_inputs_is_one_clear_error(error):
    def fail(name):
        with inputs.accepted(Call((torch.zeros(2, 3),)), *name):
            raise error("mat1 and mat2\nand more")

    for name, expected in (((), "data"), (("example",), "example")):
        with refused(expected) as caught:
            fail(name)
        assert error.__name__ in str(caught.value.received)
        assert "(2, 3) float32" in caught.value.remedy
        assert len(str(caught.value).splitlines()) == 1
        assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, AuditFailed, KeyboardInterrupt, ZeroDivisionError])
def test_errors_that_say_nothing_of_the_inputs_come_through(error):
    def fail():
        with inputs.accepted(Call((torch.zeros(2, 3),))):
            raise error("as it is")

    with pytest.raises(error, match="as it is"):
        fail()


# --- nested tensors ---------------------------------------------------------------------------------------------------


def test_tensors_of_an_output_whatever_holds_them():
    logits, hidden = torch.zeros(2, 3), (torch.zeros(2), torch.ones(2))

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        hidden: tuple[torch.Tensor, ...]
        name: str = "text"

    outputs = (
        {"logits": logits, "hidden": hidden},
        SequenceClassifierOutput(logits=logits, hidden_states=hidden),
        Output(logits, hidden),
        [logits, {"deep": hidden}, None],
    )
    for output in outputs:
        found = inputs.output_tensors(output)
        assert [id(t) for t in found] == [id(logits), *map(id, hidden)]
    assert inputs.output_tensors(logits) == [logits]
    assert inputs.output_tensors("text") == []


def test_one_tensor_in_the_place_of_another():
    old, new, other = torch.zeros(1), torch.ones(1), torch.zeros(1)
    structure = (Pair(other, old), [old, {"x": old, "y": other}], 3)
    replaced = inputs.replace_tensor(structure, old, new)
    assert isinstance(replaced[0], Pair)
    assert replaced[0].left is other
    assert all(t is new for t in (replaced[0].right, replaced[1][0], replaced[1][1]["x"]))
    assert replaced[1][1]["y"] is other
    assert structure[1][0] is old
