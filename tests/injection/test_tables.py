"""Sites, audits and watches as a session or a notebook shows them: short, with failures first, and escaped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.injection.audits import Finding
from dropscope.injection.observer import SeenDropout
from support import zoo

EVIL = "<script>alert(1)</script>"


class Named(nn.Module):
    """A layer and a dropout whose names are markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL, nn.Linear(8, 32))
        self.add_module("<b>", nn.Dropout(0.5))
        self.fc = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, drop, last = self.children()
        return last(drop(first(x).relu()))


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def short(thing: object) -> str:
    text = repr(thing)
    lines = text.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 165
    return text


def escaped(thing: object) -> str:
    fragment = thing._repr_html_()  # type: ignore[attr-defined]
    assert EVIL not in fragment
    assert "<b>" not in fragment
    assert "<style" not in fragment
    return fragment


def test_sites_are_a_list_that_shows_a_table() -> None:
    sites = ds.find_sites(zoo.seeded(Named), zoo.vectors(2))
    assert isinstance(sites, list)
    assert sites == list(sites)
    assert isinstance(sites[0], ds.Site)
    assert type(sites[:2]) is type(sites)
    for site in sites:
        assert site.name in short(sites)
    assert "&lt;script&gt;" in escaped(sites)


def test_many_sites_are_shown_in_part_and_printed_whole() -> None:
    deep = nn.Sequential(*[nn.Linear(4, 4) for _ in range(60)])
    sites = ds.find_sites(deep, torch.zeros(1, 4))
    assert "more: print the list" in short(sites)
    assert len(str(sites).splitlines()) == 62
    assert "60 sites" in repr(sites)
    assert escaped(sites).count("<tr>") < 60
    assert repr(ds.find_sites(deep, torch.zeros(1, 4))[:0]) == "0 sites"


def test_an_audit_shows_failures_first() -> None:
    model = zoo.seeded(Named)
    audit = ds.audit(model, f"{EVIL}=0.5,fc@input=0.2", zoo.vectors(8))
    assert "ok" in short(audit).splitlines()[0]
    assert "&lt;script&gt;" in escaped(audit)
    fine = tuple(Finding(f"layer{n}@output", "bernoulli", 0.5, 0.5, 99, fired=True, effect=True) for n in range(99))
    wrong = Finding(f"{EVIL}@output", "bernoulli", 0.5, None, 0, fired=False, effect=None, problem="it did not fire")
    many = ds.Audit(ds.Placement("all=0.5"), (*fine, wrong), ("x" * 3000,), ())
    assert wrong.site in short(many)
    assert "FAILED" in repr(many).splitlines()[0]
    assert "did not fire" in escaped(many)
    assert len(str(many).splitlines()) > 100  # printed, it is whole


def test_a_watch_shows_what_was_silent_first() -> None:
    model = zoo.seeded(Named).eval()
    with ds.watch(model) as seen:
        for _ in range(2):
            model(zoo.vectors(4))
    assert "SILENT" in short(seen)
    assert "&lt;b&gt;" in escaped(seen)
    seen.dropouts = [SeenDropout(f"drop{n}", 0.0, 5) for n in range(50)] + [SeenDropout("mute", 0.5, 5)]
    assert "mute" in short(seen)
    assert "more: print the watch" in repr(seen)
