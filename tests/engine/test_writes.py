"""Programs that write in place: as values they give the same, and what shares memory is left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dropscope.engine.writes import without_writes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, where it takes a program apart


class Written(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.layer, self.norm = body, nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.norm(self.layer(x)))


def twice(x: Tensor) -> Tensor:
    y = x.relu_()
    y += x
    return y * x


def before_and_after(x: Tensor) -> Tensor:
    old = x * 2
    x.add_(1)
    return old + x


def chained(x: Tensor) -> Tensor:
    return F.silu(F.relu(x, inplace=True).mul_(3), inplace=True)


def through_a_view(x: Tensor) -> Tensor:
    x[:, :2].add_(5)
    return x


def under_a_view(x: Tensor) -> Tensor:
    flat = x.view(-1)
    x.mul_(2)
    return flat.view_as(x)


def under_a_dropout(x: Tensor) -> Tensor:
    kept = F.dropout(x, 0.5, training=False)
    kept.add_(1)
    return x + kept


def of_another_type(x: Tensor) -> Tensor:
    return x.add_(torch.arange(4))


QUICK = [twice, before_and_after, chained]
LEFT_TO_TORCH = [through_a_view, under_a_view, of_another_type]


@pytest.mark.parametrize("body", QUICK + LEFT_TO_TORCH)
def test_the_program_writes_to_nothing_and_gives_the_same(body: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Written(body).eval(), torch.randn(3, 4)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=False)
        found = without_writes(program)
        assert (found is program) == (body in QUICK)
        for node in found.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            assert schema is None or not schema.is_mutable
        torch.testing.assert_close(found.module()(x), model(x))


def test_a_dropout_that_is_off_may_be_its_input() -> None:
    program = torch.export.export(Written(under_a_dropout).eval(), (torch.randn(3, 4),), strict=False)
    assert without_writes(program) is not program


def test_a_program_without_writes_is_taken_as_it_is() -> None:
    program = torch.export.export(Written(torch.relu).eval(), (torch.randn(3, 4),), strict=False)
    assert without_writes(program) is program


def test_what_is_written_to_an_input_is_left_to_torch() -> None:
    class Input(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu_() + 1

    program = torch.export.export(Input().eval(), (torch.randn(3, 4),), strict=False)
    assert without_writes(program) is not program
