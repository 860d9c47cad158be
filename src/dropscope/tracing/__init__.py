"""Tracing of one forward of any model: names and provenance of its values, and visitors that may change them."""

from dropscope.tracing.draws import Draw
from dropscope.tracing.modules import LAYERS, dropout_rate, is_dropout, is_foreign_dropout, keeps_running_statistics
from dropscope.tracing.recorder import (
    ABOUT_VALUES,
    LAYERDROP,
    NORM_FUNCTIONS,
    SUM_FUNCTIONS,
    Recorder,
    is_rate,
    record,
    record_training,
)
from dropscope.tracing.taps import Taps, TapsMissed, locate, tapped
from dropscope.tracing.tracer import trace
from dropscope.tracing.visitor import About, OwnDropout, Point, Visitor

__all__ = [
    "ABOUT_VALUES",
    "LAYERDROP",
    "LAYERS",
    "NORM_FUNCTIONS",
    "SUM_FUNCTIONS",
    "About",
    "Draw",
    "OwnDropout",
    "Point",
    "Recorder",
    "Taps",
    "TapsMissed",
    "Visitor",
    "dropout_rate",
    "is_dropout",
    "is_foreign_dropout",
    "is_rate",
    "keeps_running_statistics",
    "locate",
    "record",
    "record_training",
    "tapped",
    "trace",
]
