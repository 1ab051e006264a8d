"""Flag over file over variable; what means nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import App
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rebar.cli.main import VERBS, build_app
from rebar.cli.options import DEFAULT_MODEL, AnswerFlags, format_size, parse_size
from rebar.cli.settings import FLAGS, check_variables, places, read_file
from rebar.errors import InputError
from rebar.service import api


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GB", 4_000_000_000),
        ("4gb", 4_000_000_000),
        ("512MiB", 512 << 20),
        ("1.5G", 1_500_000_000),
        ("1048576", 1 << 20),
        ("100 kb", 100_000),
        ("0", 0),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "4XB", "1e9", "4 GB extra", "٤GB", "nan", "4,5GB"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="Write it like 4GB"):
        parse_size(text)


@given(st.integers(0, 10**15))
def test_a_printed_size_reads_back_within_its_last_digit(nbytes: int) -> None:
    # One decimal of a value of at least 1.0: off by at most half of 0.1, that is 5 %.
    assert abs(parse_size(format_size(nbytes)) - nbytes) <= nbytes * 0.05 + 0.5


@pytest.mark.parametrize(("text", "guesses"), [("auto", 7), ("off", 0), ("0", 0), ("3", 3)])
def test_speculation(text: str, guesses: int) -> None:
    assert AnswerFlags(speculation=text).guesses == guesses


@pytest.mark.parametrize("text", ["", "8", "-1", "on", "3.5", "٣"])
def test_what_is_no_speculation_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--speculation is auto, off or a number up to 7"):
        _ = AnswerFlags(speculation=text).guesses


def test_a_misspelled_variable_is_refused_and_the_right_ones_are_named() -> None:
    with pytest.raises(InputError, match=r"REBAR_TREADS is set.*REBAR_THREADS"):
        check_variables({"REBAR_TREADS": "2", "HOME": "/"})
    check_variables({"REBAR_THREADS": "2", "REBAR_ISA": "avx2", "REBARX": "1"})


def commands() -> list[App]:
    """Every command that takes flags, those of a verb's own verbs included."""
    verbs = [build_app(verb)[verb] for verb in VERBS]
    bench = build_app("bench")["bench"]
    return [v for v in verbs if v.default_command] + [bench["engine"], bench["serve"]]


def test_known_variables_are_exactly_the_flags_of_the_verbs() -> None:
    arguments = [a for app in commands() for a in app.assemble_argument_collection()]
    names = {a.name for a in arguments if not a.children and a.show}
    assert {name.lstrip("-").replace("-", "_") for name in names} == FLAGS


def test_places_come_from_the_environment(tmp_path: Path) -> None:
    assert places({"XDG_CACHE_HOME": "/c"}).cache == Path("/c/rebar")
    assert places({"XDG_CACHE_HOME": "/c", "REBAR_CACHE": str(tmp_path)}).cache == tmp_path
    assert places({"HF_ENDPOINT": "http://mirror/"}).hub == "http://mirror"
    assert places({"REBAR_ISA": ""}).isa is None
    assert places({"REBAR_ISA": "avx2"}).isa == "avx2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[srve]\nport = 1\n", r"\[srve\] is no table"),
        ("port = 1\n", r"\[port\] is no table"),
        ("[serve\n", "is not TOML"),
    ],
)
def test_a_settings_file_that_means_nothing_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "rebar.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_file(path, tuple(VERBS))


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        read_file(tmp_path / "nowhere.toml", tuple(VERBS))


def test_commands_and_the_python_api_have_one_default_model() -> None:
    assert api.DEFAULT_MODEL == DEFAULT_MODEL


def test_the_list_of_verbs_says_what_each_says_itself() -> None:
    own = {verb: build_app(verb)[verb].help.split("\n")[0] for verb in VERBS}
    assert own == VERBS


SOUND = b'[serve]\nport = 8001\nmemory = "4GB"\n[chat]\ntemperature = 0.5\n'


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=60) | st.text(max_size=40).map(str.encode) | st.just(SOUND),
    at=st.integers(0, len(SOUND)),
    more=st.binary(max_size=4),
)
def test_any_settings_file_is_tables_of_verbs_or_an_input_error(
    tmp_path: Path, raw: bytes, at: int, more: bytes
) -> None:
    path = tmp_path / "rebar.toml"
    path.write_bytes(raw[:at] + more + raw[at + len(more) :])
    try:
        tables = read_file(path, tuple(VERBS))
    except InputError as refusal:
        message = str(refusal)
        assert message.startswith(str(path))
        assert message.endswith(".")
    else:
        assert set(tables) <= set(VERBS)
