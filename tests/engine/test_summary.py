"""Plans as they are shown: short in a session, a table in a notebook, whole when printed."""

from __future__ import annotations

from dataclasses import replace

from dropscope.engine import PlanSummary

TREE = tuple(f"<script>{n} (bernoulli, element masks, 9 rates): {n} → {9 * n} variants" for n in range(30))
SHARED = PlanSummary(
    engine="shared", reason="", placements=999, computed=500, passes=100, examples=600, tree=TREE,
    merged=("499 placements are equal to another one by mathematics", "conv1: output, input are one place"),
    multiply_adds=10**9, naive=10**11, bytes_moved=10**8, naive_bytes=10**10, memory=1 << 26, seconds=12.3,
)  # fmt: skip


def test_a_plan_is_short_in_a_session_and_whole_when_printed() -> None:
    lines = repr(SHARED).splitlines()
    assert len(lines) <= 10
    assert sum("print the plan" in line for line in lines) == 1
    assert all(line in str(SHARED) for line in TREE)
    assert "999 placements" in repr(SHARED)
    few = replace(SHARED, tree=TREE[:2], merged=())
    assert repr(few) == str(few)


def test_a_long_reason_is_cut() -> None:
    loop = replace(SHARED, engine="loop", reason="x" * 3000)
    assert len(repr(loop)) < 400
    assert len(str(loop)) > 3000


def test_a_plan_in_a_notebook_is_a_table() -> None:
    fragment = SHARED._repr_html_()
    assert "<script>" not in fragment
    assert "&lt;script&gt;" in fragment
    assert "100× fewer than a loop" in fragment
    assert fragment.count("<tr>") == 5
    assert replace(SHARED, engine="loop")._repr_html_().count("<tr>") == 3
