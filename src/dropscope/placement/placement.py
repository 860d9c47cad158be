"""Placements as frozen values: parse, print, compare, hash.

Owns the text form `name[#call][@position]=rate,... noise=... mask=...` and its canonical form. Knows no model: see
`injection` for whether a name exists, and which sites a group stands for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dropscope.checks import check_choice, check_rate, finite_number
from dropscope.errors import BadInput, nearest
from dropscope.placement.noises import noise_name, noise_names
from dropscope.placement.spelling import repaired

POSITIONS = ("auto", "input", "output", "before_activation", "after_activation", "weights", "branch", "sum")
MASKS = ("auto", "channel", "element")
GROUPS = ("all", "last", "conv", "linear", "recurrent", "attention", "ffn", "embedding", "residual", "head", "dropout")

_OPTIONS = {"noise": noise_names, "mask": lambda: MASKS}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_ADAPTIVE = re.compile(r"rate_in\((.*)\)", re.ASCII)
_CALL = re.compile(r"\d{1,9}", re.ASCII)
_PLAIN_REMEDY = "write 'none' (or Placement.none()) for a plain pass, or name a site, as in 'fc1=0.5'"


@dataclass(frozen=True)
class Term:
    """One site, or one group of sites, and its rate.

    Attributes:
        name: Module path, functional site or group.
        call: Which call of the site, from 0; None means every call.
        position: Where at the site.
        rate: Probability of dropping, in [0, 1).
        adaptive: Whether `rate` is instead the share of information to lose, at a rate that each example has of its
            own: `rate_in(0.1)`.
    """

    name: str
    call: int | None
    position: str
    rate: float
    adaptive: bool = False

    @property
    def address(self) -> str:
        """The key that stands for this term in a mapping: `name[#call][@position]`."""
        call = "" if self.call is None else f"#{self.call}"
        return self.name + call + ("" if self.position == "auto" else f"@{self.position}")

    @property
    def is_group(self) -> bool:
        """Whether the name is that of a group. In a model with a site of the same name, the model decides."""
        return self.name.removeprefix("all.") in GROUPS

    def __str__(self) -> str:
        return f"{self.address}={f'rate_in({_shortest(self.rate)})' if self.adaptive else _shortest(self.rate)}"


@dataclass(frozen=True)
class Own:
    """The model's own dropout at its configured rates, scaled.

    Attributes:
        group: The group of sites it is limited to; None means all of it.
        scale: Factor on the configured rates, at least 0.
    """

    group: str | None
    scale: float

    @property
    def address(self) -> str:
        """The key that stands for this term in a mapping: `own` or `own.group`."""
        return "own" if self.group is None else f"own.{self.group}"

    def __str__(self) -> str:
        return self.address + ("" if self.scale == 1 else f"*{_shortest(self.scale)}")


@dataclass(frozen=True, init=False, repr=False)
class Placement:
    """Which sites get which noise at which rate.

    Two placements are equal when their canonical texts are. In canonical form terms are sorted by name, call and
    position. A rate of 0 is left out unless something broader could put noise there (`all=0.1,conv1=0` switches conv1
    off); what has nothing left is `none`.

    Args:
        rates: A mapping of `name[#call][@position]` to a rate, and of `own` or `own.group` to a scale; or the text
            form. A name is a module path, a functional site such as `block:dropout`, or a group: any printable
            characters except blanks and `= , @ # *`. `none`, `own` and names that start with `own.` are reserved.
            "rate_in(0.1)" in place of a rate has each example drop what costs it a tenth of the information there.
        position: Where at a site, for terms that do not say: "auto", "input", "output", "before_activation",
            "after_activation", "weights", "branch" or "sum".
        noise: "bernoulli", "gaussian", "multinomial", or a function of (uniforms, rate); see `register_noise`.
        mask: What one draw covers: "channel", "element", or "auto" for channels of convolutions and elements elsewhere.

    Attributes:
        terms: Sites and groups with their rates, in canonical order.
        own: The model's own dropout, in canonical order.
        noise: The name of the noise, as given or as the text says.
        mask: As given, or as the text says.
        key: 16 hexadecimal digits that stand for the placement on every machine.

    Raises:
        BadInput: Where a name, rate, scale or option cannot be used, or a site is named twice.

    Examples:
        >>> Placement({"fc1": 0.8}, position="input")
        Placement('fc1@input=0.8')
        >>> Placement("fc1 = .4, conv2=7e-1 noise=gaussian")
        Placement('conv2=0.7,fc1=0.4 noise=gaussian')
        >>> print(Placement({"own": 1, "own.attention": 0.5}), Placement({"fc1": 0}), Placement("fc1=rate_in(.1)"))
        own,own.attention*0.5 none fc1=rate_in(0.1)
    """

    terms: tuple[Term, ...]
    own: tuple[Own, ...]
    noise: str
    mask: str

    def __init__(
        self,
        rates: Mapping[str, float] | str,
        position: str = "auto",
        noise: str | Callable[..., Any] = "bernoulli",
        mask: str = "auto",
    ) -> None:
        check_choice(position, "position", POSITIONS)
        if not isinstance(rates, str | Mapping):
            raise BadInput("rates must be a mapping or a text", "rates", rates, "write {'fc1': 0.5} or 'fc1=0.5'")
        try:
            fields = _fields(rates, position, noise, mask)
        except BadInput as error:
            better = repaired(rates) if isinstance(rates, str) else rates
            if better == rates or not _is_readable(better):
                raise
            raise BadInput(error.what, error.name, error.received, f"write '{better}'") from None
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @classmethod
    def parse(cls, text: str) -> Placement:
        """The placement that a text stands for; `str()` of it is the canonical text.

        Args:
            text: `name[#call][@position]=rate,... noise=... mask=...`, `own[.group][*scale]` or `none`.

        Raises:
            BadInput: Where the text is no placement.

        Examples:
            >>> Placement.parse("conv1#0@input=.2, fc1=.5").terms[0].address
            'conv1#0@input'
        """
        if not isinstance(text, str):
            raise BadInput("text must be a string", "text", text, "write 'fc1=0.5', or use as_placement")
        return cls(text)

    @classmethod
    def none(cls) -> Placement:
        """The plain placement: no noise anywhere.

        Examples:
            >>> str(Placement.none())
            'none'
        """
        return cls("none")

    @property
    def is_none(self) -> bool:
        """Whether this is the plain placement."""
        return not self.terms and not self.own

    @cached_property
    def _text(self) -> str:
        if self.is_none:
            return "none"
        noise = "" if self.noise == "bernoulli" else f" noise={self.noise}"
        mask = "" if self.mask == "auto" else f" mask={self.mask}"
        return ",".join(str(term) for term in (*self.own, *self.terms)) + noise + mask

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of the canonical text's SHA-256: the same in every process and on every machine."""
        return hashlib.sha256(self._text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Placement({self._text!r})"

    def __hash__(self) -> int:
        # Not the hash of strings, which changes from process to process and with it the order of a set of placements.
        return hash(int(self.key, 16))


def as_placement(placement: Placement | str | Mapping[str, float]) -> Placement:
    """A placement from what a user may write: itself, its text, or a mapping of rates.

    >>> as_placement("fc1=.5") == as_placement({"fc1": 0.5}) == as_placement(Placement("fc1=0.5"))
    True
    """
    if isinstance(placement, Placement):
        return placement
    if isinstance(placement, str | Mapping):
        return Placement(placement)
    rule = "placement must be a Placement, a text or a mapping of rates"
    raise BadInput(rule, "placement", placement, "write 'fc1=0.5'")


def parse_address(text: str) -> tuple[str, int | None, str | None]:
    """The name, call and position in `name[#call][@position]`; None for what is not stated.

    >>> parse_address("encoder.layer.0.attention.self#1@weights"), parse_address("block:dropout")
    (('encoder.layer.0.attention.self', 1, 'weights'), ('block:dropout', None, None))
    """
    if not isinstance(text, str):
        raise BadInput("site must be a string", "site", text, "write 'conv1', 'conv1#0' or 'conv1@input'")
    head, at, position = text.strip().partition("@")
    name, numbered, call = head.partition("#")
    if name == "none" or name == "own" or name.startswith(("own.", "own*")):
        remedy = "write 'own', 'own*2' or 'own.attention*0.5' in a text, {'own': 2} in a mapping, 'none' alone"
        raise BadInput("site must not be 'own' or 'none', which take no call, position or rate", "site", text, remedy)
    # Unprintable characters too: a lone surrogate cannot be encoded, so such a name could not be hashed or stored.
    if not name or not name.isprintable() or any(c in "=,@#* " for c in name):
        remedy = "write a module path such as 'encoder.layer.0.attention.self', as find_sites prints it"
        if bare := re.match(r"([^=,@#*\s]+)\s*[=\s]", name):
            remedy = f"write {bare[1]!r}, without a rate"
        raise BadInput("site must have a printable name without blanks and = , @ # *", "site", text, remedy)
    if numbered and not _CALL.fullmatch(call):
        remedy = f"write '{name}#0' for the first call, '{name}' for every call"
        raise BadInput(f"call of {name!r} must be a whole number from 0", "call", call, remedy)
    if at:
        check_choice(position, "position", POSITIONS)
    return name, int(call) if numbered else None, position if at else None


def _fields(
    rates: Mapping[str, float] | str, position: str, noise: str | Callable[..., Any], mask: str
) -> dict[str, Any]:
    """The fields of a placement, checked."""
    options: dict[str, Any] = {"noise": noise, "mask": mask}
    if isinstance(rates, str):
        entries, stated = _read(rates)
        options |= stated
    else:
        entries = list(rates.items())
        if not entries:
            raise BadInput("rates must name at least one site", "rates", rates, _PLAIN_REMEDY)
    options["noise"] = noise_name(options["noise"])
    check_choice(options["mask"], "mask", MASKS)
    terms, own = _canonical(entries, position)
    if not terms and not own:
        options = {"noise": "bernoulli", "mask": "auto"}
    return {"terms": terms, "own": own, **options}


def _is_readable(rates: Mapping[str, float] | str) -> bool:
    try:
        _fields(rates, "auto", "bernoulli", "auto")
    except BadInput:
        return False
    return True


def _read(text: str) -> tuple[list[tuple[str, object]], dict[str, str]]:
    """The entries and the options in a text, not yet checked for their meaning."""
    terms, *options = re.sub(r" ?([=,*]) ?", r"\1", " ".join(text.split())).split(" ")
    if not terms:
        raise BadInput("placement must name at least one site", "placement", text, _PLAIN_REMEDY)
    stated: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _OPTIONS or name in stated:
            remedy = "write fc1@input=0.5" if name == "position" else nearest(name, _OPTIONS)
            rule = f"after the terms of {text!r} must come noise=... and mask=... alone, each at most once"
            raise BadInput(rule, "placement", option, remedy)
        stated[name] = value
    if terms == "none":
        return [], stated
    return [_read_term(term) for term in terms.split(",")], stated


def _read_term(term: str) -> tuple[str, object]:
    address, equals, value = term.partition("=")
    name, star, scale = address.partition("*")
    if not equals and (name == "own" or name.startswith("own.")):
        return name, _number(scale) if star else 1.0
    if not equals:
        remedy = f"write '{term or 'fc1'}=0.5', or 'own' for the model's own dropout, or 'none' alone"
        rule = "each term must be name[#call][@position]=rate or own[.group][*scale]"
        raise BadInput(rule, "placement", term, remedy)
    if address in _OPTIONS and value in _OPTIONS[address]():
        raise BadInput("options must follow the terms after a blank", "placement", term, f"write 'fc1=0.5 {term}'")
    # Here and not only where entries are checked: as a mapping's key `own` takes a number, in a text only `own*2`.
    parse_address(address)
    return address, _number(value)


def _canonical(entries: list[tuple[str, object]], default: str) -> tuple[tuple[Term, ...], tuple[Own, ...]]:
    terms: dict[tuple[str, int, str], Term] = {}
    own: dict[str, Own] = {}
    for address, value in entries:
        if isinstance(address, str) and (address == "own" or address.startswith("own.")):
            group = address[len("own.") :] if address != "own" else "all"
            check_choice(group, "group of 'own'", GROUPS)
            if group in own:
                raise BadInput("each group of 'own' must be named once", "own", address, "keep one of the two terms")
            own[group] = Own(None if group == "all" else group, _check_scale(value, address))
        else:
            name, call, position = parse_address(address)
            share = _ADAPTIVE.fullmatch(value) if isinstance(value, str) else None
            rate = check_rate(value if share is None else _number(share[1]), f"rate of {address!r}")
            term = Term(name, call, position or default, rate, share is not None)
            where = (name, -1 if call is None else call, term.position)
            if where in terms:
                rule = "each site must be named once per call and position"
                raise BadInput(rule, "site", address, "keep one of the two terms")
            terms[where] = term
    if own and not terms and default != "auto":
        remedy = "leave position out: the model's own dropout stays where it is"
        raise BadInput("position must be 'auto' where only 'own' is named", "position", default, remedy)
    groups = any(t.is_group and t.rate > 0 for t in terms.values()) or any(o.scale > 0 for o in own.values())
    every_call = {t.name for t in terms.values() if t.call is None and t.rate > 0}
    kept = (
        t for _, t in sorted(terms.items()) if t.rate > 0 or groups or (t.call is not None and t.name in every_call)
    )
    kept_own = sorted(own.values(), key=lambda o: o.group or "") if any(o.scale > 0 for o in own.values()) else ()
    return tuple(kept), tuple(kept_own)


def _check_scale(value: object, name: str) -> float:
    number = finite_number(value)
    if number is None or number < 0:
        remedy = f"write '{name}' for the configured rates, '{name}*2' for twice those"
        rule = f"scale of {name!r} must be a finite number of at least 0"
        raise BadInput(rule, f"scale of {name!r}", value, remedy)
    return number


def _number(text: str) -> object:
    """The number in a text; other text as it is, to be refused as a rate (`float` alone would take 'nan' and '1_0')."""
    return float(text) if _NUMBER.fullmatch(text) else text


def _shortest(number: float) -> str:
    return repr(number).removesuffix(".0")
