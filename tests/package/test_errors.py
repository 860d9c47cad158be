"""Errors: one form of sentence, a name that callers rely on, and a safe trip between processes."""

import pickle

import pytest

from dropscope.errors import AuditFailed, BadInput, DropscopeError, MissingExtra, Phrase, first_line, nearest, sentence
from support.errors import refused


def test_an_error_says_what_must_hold_the_value_and_the_remedy():
    error = BadInput("rate of 'fc1' must be in [0, 1)", "rate of 'fc1'", 1.5, "write fc1=0.5")
    assert str(error) == "rate of 'fc1' must be in [0, 1), got 1.5. Write fc1=0.5."
    assert (error.what, error.received) == ("rate of 'fc1' must be in [0, 1)", 1.5)
    assert (error.name, error.remedy) == ("rate of 'fc1'", "write fc1=0.5")


@pytest.mark.parametrize(
    ("received", "remedy", "text"),
    [
        (0, "write x=1", "x must fit, got 0. Write x=1."),
        ("0", "write x=1.", "x must fit, got '0'. Write x=1."),
        (None, "did you mean 'y'?", "x must fit, got None. Did you mean 'y'?"),
        (Phrase("It is closed."), "open it", "x must fit, got It is closed. Open it."),
        (Phrase("3 ids for 4 examples"), "leave it out!", "x must fit, got 3 ids for 4 examples. Leave it out!"),
        (Phrase("no answer from the disk."), "check it", "x must fit, got no answer from the disk. Check it."),
    ],
)
def test_a_sentence_has_one_form(received, remedy, text):
    assert sentence("x must fit", received, remedy) == text


def test_a_phrase_is_text_that_is_shown_without_quotes():
    phrase = Phrase("3 ids for 4 examples")
    assert repr(phrase) == str(phrase) == phrase == "3 ids for 4 examples"
    assert repr(pickle.loads(pickle.dumps(phrase))) == "3 ids for 4 examples"


def test_a_long_value_is_cut():
    text = str(BadInput("it must fit", "it", "x" * 5000, "write 1"))
    assert len(text) < 300
    assert "..." in text


def test_a_missing_extra_names_package_and_command():
    error = MissingExtra("'hf:x'", "transformers", "text")
    assert error.name == "transformers"
    assert "pip install 'dropscope[text]'" in str(error)
    assert "'hf:x'" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("it must fit", "it", 1, "write 2"),
        BadInput("it must fit", "it", Phrase("two of three"), "write 2"),
        MissingExtra("reading volumes", "nibabel", "medical"),
        AuditFailed("a"),
    ],
)
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert isinstance(again, DropscopeError)


def test_errors_are_also_the_usual_ones():
    assert issubclass(BadInput, ValueError)
    assert issubclass(AuditFailed, RuntimeError)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError("\n\n  first  \nsecond"), "first"),
        (ValueError("x" * 500), "x" * 160),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError(" \n "), "RuntimeError"),
        (KeyError("layer"), "'layer'"),
    ],
)
def test_the_first_line_of_an_error_is_its_text_or_its_class(error, line):
    assert first_line(error) == line
    assert len(first_line(error, 10)) <= max(10, len(type(error).__name__))


def test_nearest_suggests_or_lists():
    assert nearest("fc", ["fc1", "conv1"]) == "did you mean 'fc1'?"
    assert nearest("zzz", ["fc1", "conv1"]) == "use one of 'fc1', 'conv1'"
    assert nearest("zzz", [f"layer{i}" for i in range(10)]).endswith("(and 2 more)")


def test_a_second_suggestion_is_about_as_close_as_the_first():
    assert nearest("conv", ["conv1", "conv2", "fc1"]) == "did you mean 'conv1' or 'conv2'?"
    assert nearest("fc9", ["fc1", "fc2"]).count("fc") == 2
    assert nearest("cnv1", ["conv1", "conv2", "fc1"]) == "did you mean 'conv1'?"
    assert nearest("passess", ["--passes", "--placement"]) == "did you mean '--passes'?"
    assert nearest("swep", ["sweep", "sites"]) == "did you mean 'sweep'?"


def test_nearest_prefers_a_name_that_holds_the_word():
    assert nearest("auroc", ["aurc", "augrc", "error_auroc"]) == "did you mean 'error_auroc'?"
    assert nearest("fc1", ["fc2", "body.fc1"]) == "did you mean 'body.fc1'?"
    assert nearest("AURC", ["excess_aurc", "aurc"]) == "did you mean 'aurc'?"


def test_a_refusal_is_about_its_argument():
    with refused("it") as caught:
        raise BadInput("it must fit", "it", 0, "write 1")
    assert caught.value.received == 0
    with pytest.raises(AssertionError), refused("roi"):
        raise BadInput("it must fit", "it", 0, "write 1")
