"""What a user runs: passes under one placement, sweeps over many, their rows and their folders."""

from dropscope.runs.continuations import score_continuations
from dropscope.runs.folders import open_run
from dropscope.runs.goals import goal_of
from dropscope.runs.jobs import started_by
from dropscope.runs.partitions import check_labelled, halves, portions
from dropscope.runs.passes import maps, sample, uncertainty
from dropscope.runs.places import Place, open_place
from dropscope.runs.plots import draw_accuracy_curves
from dropscope.runs.ranking import choice_notes, difference_cells, error_cells, has_errors
from dropscope.runs.result import Run
from dropscope.runs.searches import FINALISTS, RACE_PASSES, Schedule, Searched, race
from dropscope.runs.shards import Shard, ShardResult
from dropscope.runs.spaces import SEARCH_RATES, Space
from dropscope.runs.sweeps import plan_sweep, sweep, sweep_shard
from dropscope.runs.trials import Choice, plan_trial, try_out
from dropscope.runs.verdicts import LEAST_ERRORS, Judgement, deferral_lines, deferral_table, judge

__all__ = [
    "FINALISTS",
    "LEAST_ERRORS",
    "RACE_PASSES",
    "SEARCH_RATES",
    "Choice",
    "Judgement",
    "Place",
    "Run",
    "Schedule",
    "Searched",
    "Shard",
    "ShardResult",
    "Space",
    "check_labelled",
    "choice_notes",
    "deferral_lines",
    "deferral_table",
    "difference_cells",
    "draw_accuracy_curves",
    "error_cells",
    "goal_of",
    "halves",
    "has_errors",
    "judge",
    "maps",
    "open_place",
    "open_run",
    "plan_sweep",
    "plan_trial",
    "portions",
    "race",
    "sample",
    "score_continuations",
    "started_by",
    "sweep",
    "sweep_shard",
    "try_out",
    "uncertainty",
]
