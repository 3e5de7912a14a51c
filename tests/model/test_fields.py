"""Records as JSON: what they spell, also of values of a library's own types, as NumPy's are."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from typing import Any

import pytest

from engine.model.fields import dump, load


class Text(str):
    """As numpy.str_."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Whole(int):
    __slots__ = ()


class Rate(float):
    """As numpy.float64."""

    __slots__ = ()


class Kind(enum.StrEnum):
    ONE = "one"


RECORDS: list[dict[str, Any]] = [
    {"z": 1, "a": [(0, 4), (5, 9)], "m": {"1": None, "true": True, "false": False}},
    {"numbers": [0, -1, 2**63, 2**64 - 1, 2**70, 0.5, 1.0, 123456.789]},
    {"text": 'é ß 漢 \U0001f600 \u2028 \x00\x1f\x7f"\\/'},
    {"kind": Kind.ONE, Kind.ONE: OrderedDict(b=1, a=2)},
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_compact_and_in_the_order_given(record: dict[str, Any]):
    value = dump(record)
    assert value == json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    assert load(value) == json.loads(json.dumps(record))


def test_text_and_numbers_of_types_of_their_own_are_what_they_are():
    record = {Text("k"): Text("v"), "n": [Whole(3), Rate(0.5)]}
    assert dump(record) == b'{"k":"v","n":[3,0.5]}'


@pytest.mark.parametrize("value", [object(), [object()], {None: 1}])
def test_what_json_has_not_is_refused(value: Any):
    with pytest.raises(TypeError):
        dump({"value": value})


def test_half_a_pair_of_surrogates_is_refused():
    with pytest.raises(UnicodeEncodeError):
        dump({"value": "\ud800"})
