"""How many handshakes of TLS may be under way: of one address, and together."""

from __future__ import annotations

import random
from typing import Any

from engine.broker.settings.attempts import Attempts
from engine.broker.settings.handshakes import Handshake, HandshakesInFlight


def begin(among: HandshakesInFlight, source: str, ended: list[str]) -> Handshake | None:
    return among.begin(source, lambda: ended.append(source))


def test_an_address_has_so_many() -> None:
    among, ended = HandshakesInFlight(source_max=2, all_max=100), []
    first, second = begin(among, "a", ended), begin(among, "a", ended)
    assert first
    assert second
    assert begin(among, "a", ended) is None
    assert begin(among, "b", ended)
    assert (len(among), among.refused, ended) == (3, 1, [])
    among.end(first)
    among.end(first)
    assert begin(among, "a", ended)
    assert begin(among, "a", ended) is None
    assert (len(among), among.refused) == (3, 2)


def test_a_full_house_hangs_up_on_the_oldest_of_what_has_the_most() -> None:
    among, ended = HandshakesInFlight(source_max=100, all_max=4), []
    of_crowd = [begin(among, "crowd", ended) for _ in range(3)]
    assert begin(among, "other", ended)
    assert begin(among, "crowd", ended) is None, "none gives way to one of its own address"
    assert begin(among, "third", ended)
    assert [one.given_up for one in of_crowd if one] == [True, False, False]
    assert ended == ["crowd"]
    assert begin(among, "third", ended)
    assert ended == ["crowd", "crowd"]
    assert begin(among, "third", ended) is None, "it has the most itself"
    assert (len(among), among.refused) == (4, 4)


def test_counts_are_those_of_what_is_under_way() -> None:
    """Whatever begins, ends and gives way in whatever order."""
    rng = random.Random(7)
    among = HandshakesInFlight(source_max=5, all_max=12)
    under_way: dict[int, Handshake] = {}
    for number in range(3_000):
        source = rng.choice("abcdefg")
        if under_way and rng.random() < 0.4:
            among.end(under_way.pop(rng.choice(list(under_way))))
        begun = among.begin(source, lambda number=number: under_way.pop(number))
        if begun is not None:
            under_way[number] = begun
        of = [one.source for one in under_way.values()]
        assert len(among) == len(under_way) <= 12
        assert max(map(of.count, of)) <= 5
        assert not any(one.given_up for one in under_way.values())
    for one in under_way.values():
        among.end(one)
    assert len(among) == 0
    assert not among._of, "no address is remembered"


def test_addresses_are_those_of_failures() -> None:
    """A subscriber's IPv6 network is one; so is an IPv4 address in either form."""
    attempts = Attempts(lambda: 0.0)
    attempts.in_flight = HandshakesInFlight(source_max=1)

    def nothing() -> Any: ...

    for one, same in (("2001:db8::1", "2001:db8::2"), ("192.0.2.1", "::ffff:192.0.2.1")):
        assert attempts.handshake_begins(one, nothing)
        assert attempts.handshake_begins(same, nothing) is None
