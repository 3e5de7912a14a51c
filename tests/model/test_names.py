"""What a name may be: what is there keeps its name, and what is made has one that is what it looks like."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError
from engine.model.names import TopicName, check_name, check_new_name, check_property_names
from engine.model.text import HIDDEN, plain

GOOD = [
    "orders",
    "a",
    "A-1_b.c",
    "orders-DLQ",
    "Straße",
    "注文",
    "größe.€",
    "a@b",
    "x:y",
    "0",
    "emoji🚀",
    "a-",
    "#1",
    "(x)",
]
REFUSED = [
    ("a b", "white space"),
    ("a\u00a0b", "white space"),
    ("a\u3000b", "white space"),
    ("a\u2028b", "white space"),
    ("a\u202eb", r"U\+202E"),
    ("a\u200db", r"U\+200D"),
    ("\ufefforders", r"U\+FEFF"),
    ("a\u0085b", "white space"),
    ("a\u009bb", r"U\+009B"),
    ("a\ue000b", r"U\+E000"),
    ("orders\ufe0f", r"U\+FE0F"),
    ("a\u3164", r"U\+3164"),
    ("\u2800", r"U\+2800"),
    ("a\u034fb", r"U\+034F"),
    ("a\U000e0100", r"U\+E0100"),
    ("-rf", "not begin with '-'"),
    ("cafe\u0301", r"normal form C, 'caf\\xe9', got 'cafe\\u0301'"),
    ("\u212b", "normal form C"),
    ("orders.*", r"pattern=…"),
    ("orders>", "pattern="),
    ("^orders", "pattern="),
    ("orders$", "pattern="),
]


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert check_new_name(name, "topic") == name
    TopicName.parse(name).check_new()


@pytest.mark.parametrize(("name", "said"), REFUSED)
def test_what_is_refused_from_now_on_is_still_read(name: str, said: str) -> None:
    assert check_name(name, "topic name") == name
    assert TopicName.parse(name).local == name
    assert str(TopicName.parse(str(TopicName.parse(name)))) == str(TopicName.parse(name))
    for place in (f"topic://public/default/{name}", f"topic://public/{name}/t", f"topic://{name}/default/t"):
        with pytest.raises(InvalidArgumentError, match=said) as caught:
            TopicName.parse(place).check_new()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "a\x00", "", "a/b", ".", "..", "\ud800", "x" * 256])
def test_what_was_always_refused(name: str) -> None:
    for check in (check_name, check_new_name):
        with pytest.raises(InvalidArgumentError):
            check(name, "topic")


def test_characters_of_patterns_are_refused_where_a_pattern_may_be_meant() -> None:
    assert check_new_name("a$b", "producer", pattern=False) == "a$b"
    with pytest.raises(InvalidArgumentError, match="white space"):
        check_new_name("a b", "producer", pattern=False)


def test_names_of_properties() -> None:
    check_property_names({"a b": "\x1b", "größe": ""}, "topic")
    for name in ("a\x1b", "a\u202e", "a\n"):
        with pytest.raises(InvalidArgumentError, match="property"):
            check_property_names({name: ""}, "topic")


@given(st.text())
def test_plain_text_moves_nothing_and_hides_nothing(text: str) -> None:
    shown = plain(text)
    assert all(unicodedata.category(one) not in HIDDEN for one in shown)
    if not any(unicodedata.category(one) in (*HIDDEN, "Cn") for one in text):
        assert shown == text
    assert plain(text, keep="\n").count("\n") == text.count("\n")


def test_plain_text_spells_what_it_leaves_out() -> None:
    assert plain("a\x1b[2J\u202e\n\x9b") == r"a\x1b[2J\u202e\n\x9b"
    assert plain("schön 注文\u00a0🚀") == "schön 注文\u00a0🚀"
