"""A config's patterns: they mean what Python's own matcher takes them for, and none of them can hang a command."""

from __future__ import annotations

import re
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goldstick.errors import FormatError
from goldstick.formats import name_matching
from goldstick.formats.name_matching import NamePatterns
from tests.support.time_limit import within

NAME = "model.layers.17.mlp.experts.123.up_proj"
NAMES = [NAME, "lm_head", "model.layers.0.self_attn.q_proj", "model.layers.18.mlp.gate", "a", "aaab", "A-b c!"]


def matches(pattern: str, name: str) -> bool:
    return NamePatterns([f"re:{pattern}"]).first(name) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        ".*lm_head",
        r"^model\.layers\.\d+\.mlp\.experts\.\d+\.w[123]$",
        r"^lm_head$",
        r"^lm_head",
        r".*\.(18|19)\..*(gate|up)_proj.*",
        r"model\.layers\.(?:\d+)\.self_attn\.(q|k|v)_proj",
        r".*mlp\.gate$",
        r".*mlp\.gate\Z",
        "(?!.*lm_head).*",
        "^(?!.*(lm_head|gate)).*$",
        "^(?!.*mlp)(?=.*layers).*",
        r"model\.layers\.(?!1\d\.).*",
        r"model\.layers\.(?:1[78]|20)\..*",
        r"(?i)MODEL\..*",
        r"(lm)_head|a+b",
        r"[^.]+\.layers\.[0-9]{1,2}\.\w+\.\S+",
        r".*\bgate\b",
        r"[]a]|[\w-]+ c!?",
        "",
    ],
)
def test_the_patterns_that_tools_write_mean_what_python_takes_them_for(pattern: str) -> None:
    assert [matches(pattern, name) for name in NAMES] == [re.match(pattern, name) is not None for name in NAMES]


ATOMS = [
    "a",
    "b",
    ".",
    r"\.",
    r"\d",
    r"\w",
    r"\S",
    r"\W",
    r"\-",
    "[ab]",
    "[^a.]",
    "[a-c_]",
    r"[\d.]",
    "^",
    "$",
    r"\b",
    r"\B",
]
OPENS = ["(", "(?:", "(?!", "(?="]
REST = [
    "(?P<n>",
    ")",
    ")",
    "*",
    "+",
    "?",
    "{2}",
    "{0,2}",
    "{1,}",
    "*?",
    "|",
    "|",
    r"\Z",
    r"\A",
    "{,2}",
    "++",
    "(?i)",
    "[[:alpha:]]",
]


@given(
    parts=st.lists(st.sampled_from([*ATOMS, *ATOMS, *OPENS, *REST]), max_size=8),
    names=st.lists(st.text("ab1._- A", min_size=1, max_size=6), min_size=1, max_size=6),
)
def test_what_is_taken_means_what_python_takes_it_for(parts: list[str], names: list[str]) -> None:
    pattern = "".join(parts)
    try:
        read = NamePatterns([f"re:{pattern}"])
    except FormatError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = re.compile(pattern)  # what is read here, Python reads too, without doubts
    assert [read.first(name) is not None for name in names] == [compiled.match(name) is not None for name in names]


@pytest.mark.parametrize(
    "pattern", [f"({atom}{one}){two}" for atom in ("a", r"\w", "[ab]") for one in "*+?" for two in "*+"]
)
def test_repeats_of_groups_are_taken(pattern: str) -> None:
    assert matches(pattern + "b$", "aaab") == (re.match(pattern + "b$", "aaab") is not None)


EVIL = [
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "(.|[^!])" * 30 + "!",
    "(.*a){20}b",
    "(x+x+)+y",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "((a{0,100}){0,100}){0,100}",
    "((a{1,9}){1,9}){1,9}b",
    "(.*)*x",
    ".*.*.*.*.*x",
    r"\w+\w+\w+\w+\w+x",
    "a?" * 400 + "a" * 200,
    "(?!(a+)+$).*",
    "(a*)*" * 150 + "b",
    "(" * 400 + "a" + ")*" * 400,
    "(?:a|b|ab)*(?:a|b|ab)*(?:a|b|ab)*c",
    ".*a.{14}b.*c",
    "a{1000}" * 140,
]


@pytest.mark.parametrize("pattern", EVIL, ids=lambda pattern: pattern[:30])
@pytest.mark.parametrize("name", ["a" * 64 + "!", "ab" * 2000, "x" * 4000], ids=lambda name: name[:3])
def test_no_pattern_takes_time_to_speak_of(pattern: str, name: str) -> None:
    with within(seconds=2):
        try:
            read = NamePatterns([f"re:{pattern}"])
        except FormatError:
            return
        assert len({read.first(name) for _ in range(20)}) == 1


def test_a_hundred_thousand_patterns_are_refused_and_as_many_names_are_looked_up() -> None:
    with within(seconds=5):
        with pytest.raises(FormatError, match="more than 1,000 patterns"):
            NamePatterns([f"re:.*{number}a" for number in range(100_000)])
        names = [f"model.layers.{number}.up-proj" for number in range(100_000)]
        read = NamePatterns([*names, *(f"re:^{re.escape(name)}x$" for name in names)])
        assert [read.first(name) for name in names[:50_000]] == list(range(50_000))
        assert read.first(names[7] + "x") == 100_007


def test_patterns_that_cost_too_much_time_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_matching, "SECONDS", 0.05)
    read = NamePatterns([f"re:.*{number}x" for number in range(1000)])
    with within(seconds=5), pytest.raises(FormatError, match="matching them took longer"):
        for number in range(100_000):
            read.first(f"model.layers.{number}")


def test_the_patterns_of_a_giant_are_matched_in_seconds() -> None:
    """60 layers of 256 experts, and twenty patterns none of which matches."""
    read = NamePatterns([rf"re:.*\.{layer}\..*gate.*" for layer in range(100, 120)])
    started = time.thread_time()
    for layer in range(60):
        for expert in range(256):
            assert read.first(f"model.layers.{layer}.mlp.experts.{expert}.up_proj") is None
    assert time.thread_time() - started < name_matching.SECONDS / 4


def test_the_first_pattern_of_a_list_is_found() -> None:
    read = NamePatterns(["lm_head", "re:.*proj", NAME, "re:lm_.*", "re:^lm_head$"])
    assert [read.first(name) for name in ("lm_head", NAME, "lm_tail", "norm")] == [0, 1, 3, None]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("model(", "missing"),
        ("*a", "nothing that '\\*' could repeat"),
        ("^*", "nothing that"),
        ("a**", "nothing that"),
        (r"(a)\1", "it holds"),
        (r"\pL", "it holds"),
        (r"\Qa\E", "it holds"),
        (r"\x41", "it holds"),
        ("(?<=a)b", "it holds"),
        ("(?P<n>a)", "it holds"),
        ("(?U)a", "it holds"),
        ("[[:alpha:]]", "it holds"),
        ("a{,5}", "it holds"),
        ("a{1001}", "repetition"),
        ("a" * 1001, "longer than 1,000"),
        ("modèle", "printable ASCII"),
        ("a\n", "printable ASCII"),
        ("\ud800", "printable ASCII"),
        ("((?!gate).)*", r"a lookahead stands elsewhere than at its start; .*without part"),
        (r".*\.(?!gate)", "a lookahead stands elsewhere"),
        ("(?!a)b|c", "a lookahead stands elsewhere"),
        ("(?!a)*", "a lookahead stands elsewhere"),
        ("(?!a", "missing"),
        ("(?!(?!a)b)c", "perl operator"),
    ],
)
def test_what_is_no_pattern_or_one_that_is_not_matched_here_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(FormatError, match=f"is refused: .*{says}"):
        NamePatterns([f"re:{pattern}"])


@pytest.mark.parametrize("name", ["modèle", "lm_head\n", "a\0", "\ud800"])
def test_a_name_that_no_layer_has_is_matched_by_no_expression(name: str) -> None:
    with pytest.raises(FormatError, match="cannot be matched"):
        matches(".*", name)
    assert NamePatterns([name]).first(name) == 0
