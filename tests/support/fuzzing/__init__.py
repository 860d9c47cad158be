"""Fuzzing of everything that Dropscope reads: each input is used, or refused with one clear line.

See `mutation` for how inputs are made, `files`, `stored` and `words` for what reads them, `trials` for what is judged.
`benchmarks/fuzz.py` tries as many as one likes, the tests a few of each and all that ever failed (`findings`).
"""

from __future__ import annotations

from support.fuzzing import files, stored, words
from support.fuzzing.trials import Target

TARGETS: dict[str, Target] = {target.name: target for room in (words, files, stored) for target in room.TARGETS}
