"""LaTeX tables that pdflatex compiles, whatever characters names and numbers hold.

Owns the escaping. A table needs the package booktabs; a long one longtable too, which comes with LaTeX.
"""

from __future__ import annotations

import unicodedata

import pandas as pd

_ASCII = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
    "[": "{[}", "*": "{*}",  # both mean something else after the end of a row
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
_TEXT = {
    "–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'", "…": r"\ldots{}", "†": r"\dag{}", "§": r"\S{}",
    "\xa0": "~", "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "æ": r"\ae{}", "œ": r"\oe{}",
    "ı": r"\i{}", "\n": " ", "\t": " ",
}  # fmt: skip
_MATH = {
    "−": "-", "×": r"\times", "±": r"\pm", "·": r"\cdot", "÷": r"\div", "≤": r"\le", "≥": r"\ge", "≠": r"\ne",
    "≈": r"\approx", "∞": r"\infty", "∈": r"\in", "∑": r"\sum", "√": r"\surd", "→": r"\to", "←": r"\leftarrow",
    "↑": r"\uparrow", "↓": r"\downarrow", "↔": r"\leftrightarrow", "°": r"^\circ", "′": r"'", "‖": r"\|",
    "½": r"\frac12", "✓": r"\surd", "✗": r"\times",
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\epsilon", "η": r"\eta", "θ": r"\theta",
    "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "µ": r"\mu", "ν": r"\nu", "π": r"\pi", "ρ": r"\rho",
    "σ": r"\sigma", "τ": r"\tau", "φ": r"\phi", "χ": r"\chi", "ω": r"\omega", "Γ": r"\Gamma", "Δ": r"\Delta",
    "Θ": r"\Theta", "Λ": r"\Lambda", "Π": r"\Pi", "Σ": r"\Sigma", "Φ": r"\Phi", "Ω": r"\Omega",
    **{sign: f"^{number}" for number, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{sign: f"_{number}" for number, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c", "\u0328": "k",
}  # fmt: skip
_LONG, _WIDTH = 40, "0.25"  # characters from which on a column breaks its lines, and its share of the line
_FLOATING = 30  # rows of a table that may float; a longer one, or one of long texts, breaks across pages


def latex(table: pd.DataFrame, caption: str, label: str) -> str:
    """A LaTeX table of texts; columns of numbers are aligned right, long texts broken, long tables too (longtable).

    >>> print(latex(pd.DataFrame({"a_b": ["x & y"], "c ↓": ["−0.1"]}), "Caption", "one").splitlines()[9])
    x \\& y & $-$0.1 \\\\
    """
    rows = [" & ".join(escaped(str(value)) for value in row) for row in table.itertuples(index=False)]
    head = " & ".join(escaped(str(name)) for name in table.columns)
    columns = "".join(_column(table.iloc[:, place]) for place in range(table.shape[1]))
    body = "".join(f"{row} \\\\\n" for row in rows)
    title = f"\\caption{{{escaped(caption)}}}\n\\label{{tab:{label}}}"
    ruled = f"\\toprule\n{head} \\\\\n\\midrule\n"
    if len(rows) > _FLOATING or "p{" in columns:
        return (
            f"% needs the packages booktabs and longtable\n\\begin{{longtable}}{{{columns}}}\n{title} \\\\\n"
            f"{ruled}\\endhead\n{body}\\bottomrule\n\\end{{longtable}}\n"
        )
    return (
        f"% needs the package booktabs\n\\begin{{table}}\n\\centering\n{title}\n"
        f"\\begin{{tabular}}{{{columns}}}\n{ruled}{body}\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def escaped(text: str) -> str:
    """Text as LaTeX source in ASCII; a letter that pdflatex has no sign for becomes its code point.

    >>> escaped("σ ≤ 5 %, Müller_1 → 中")
    '$\\\\sigma$ $\\\\le$ 5 \\\\%, M\\\\"{u}ller\\\\_1 $\\\\to$ U+4E2D'
    """
    return "".join(_letter(letter) for letter in text)


def _letter(letter: str) -> str:
    if letter in _ASCII:
        return _ASCII[letter]
    if letter in _TEXT:
        return _TEXT[letter]
    if letter in _MATH:
        return f"${_MATH[letter]}$"
    if letter.isascii():
        return letter if letter.isprintable() else " "
    base, *marks = list(unicodedata.normalize("NFKD", letter))
    if base != letter and base.isascii() and all(mark in _ACCENTS for mark in marks):
        for mark in marks:
            base = f"\\{_ACCENTS[mark]}{{{base}}}"
        return base
    return f"U+{ord(letter):04X}"


def _column(values: pd.Series) -> str:
    texts = [str(value) for value in values]
    if max(map(len, texts), default=0) > _LONG:
        return f"p{{{_WIDTH}\\linewidth}}"
    return "r" if texts and all(_is_number(text) for text in texts) else "l"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "–"
    return True
