"""Errors carry the rule, the value received and the remedy, and survive a trip between processes."""

import pickle

import pytest

from dropscope.errors import AuditFailed, BadInput, DropscopeError, MissingExtra, nearest


def test_a_bad_input_says_rule_value_name_and_remedy():
    error = BadInput("a rate is below 1", "rate of 'fc1'", 1.5, "write fc1=0.5")
    assert str(error) == "a rate is below 1; got 1.5 for rate of 'fc1'. Instead: write fc1=0.5"
    assert (error.what, error.received) == ("a rate is below 1", 1.5)
    assert (error.name, error.remedy) == ("rate of 'fc1'", "write fc1=0.5")


def test_a_long_value_is_cut():
    assert len(str(BadInput("r", "n", "x" * 5000, "m"))) < 300


def test_a_missing_extra_names_package_and_command():
    assert str(MissingExtra("'hf:x'", "transformers", "text")) == (
        "'hf:x' needs the package 'transformers'; got None for import. Instead: pip install 'dropscope[text]'"
    )


@pytest.mark.parametrize("error", [BadInput("r", "n", 1, "m"), MissingExtra("f", "p", "e"), AuditFailed("a")])
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert isinstance(again, DropscopeError)


def test_errors_are_also_the_usual_ones():
    assert issubclass(BadInput, ValueError)
    assert issubclass(AuditFailed, RuntimeError)


def test_nearest_suggests_or_lists():
    assert nearest("fc", ["fc1", "conv1"]) == "did you mean 'fc1'?"
    assert nearest("zzz", ["fc1", "conv1"]) == "use one of 'fc1', 'conv1'"
    assert nearest("zzz", [f"layer{i}" for i in range(10)]).endswith("(and 2 more)")
