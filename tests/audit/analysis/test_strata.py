"""Groups of units."""

from kvbaton.audit.analysis.blocks import Block
from kvbaton.audit.analysis.strata import groups_of


def block(number: int, **about: object) -> Block:
    """A block of a unit about which this is known."""
    return Block(f"u{number}", "pair", dict(about))


def test_lengths_fall_into_thirds() -> None:
    """Nine lengths make three groups of three, with their bounds."""
    found = groups_of([block(n, context_tokens=100 * (n + 1)) for n in range(9)])
    assert [(g.by, g.low, g.high, len(g.blocks)) for g in found] == [
        ("length", 100.0, 300.0, 3),
        ("length", 400.0, 600.0, 3),
        ("length", 700.0, 900.0, 3),
    ]


def test_equal_lengths_stay_together() -> None:
    """Two lengths make two groups, one makes none."""
    found = groups_of([block(n, context_tokens=200 if n < 5 else 4000) for n in range(9)])
    assert [(g.low, g.high, len(g.blocks)) for g in found] == [
        (200.0, 200.0, 5),
        (4000.0, 4000.0, 4),
    ]
    assert groups_of([block(n, context_tokens=200) for n in range(9)]) == []


def test_kinds_are_groups_where_there_are_two() -> None:
    """What all have alike tells nothing apart."""
    blocks = [block(n, task_kind="ab"[n % 2], language="en") for n in range(4)]
    assert [(g.by, g.value, len(g.blocks)) for g in groups_of(blocks)] == [
        ("kind", "a", 2),
        ("kind", "b", 2),
    ]


def test_what_is_not_known_makes_no_group() -> None:
    """Units without a record are in no stratum."""
    assert groups_of([block(0), block(1)]) == []
    assert groups_of([]) == []
