"""What a collection remembers: written and read, cut anywhere, or anything else."""

from hypothesis import given
from hypothesis import strategies as st

from kvbaton.stores import Entry, Key, Kind
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.stores.marks import Mark, Marks

CLOCK = SteadyClock("a-boot", lambda: 0.0)
KEYS = st.builds(
    Key, st.sampled_from(Kind), st.integers(0, 16**64 - 1).map(lambda number: f"{number:064x}")
)
MARKS = st.builds(Mark, st.floats(0, 4e9), st.integers(0, 10**12))


@given(st.dictionaries(KEYS, MARKS, max_size=8))
def test_what_is_written_is_read(marks):
    """Every mark comes back exactly, times of use to the last bit."""
    written = Marks(CLOCK.name, marks)
    assert Marks.parse(written.encode(), CLOCK) == written


@given(st.dictionaries(KEYS, MARKS, min_size=1, max_size=3), st.data())
def test_what_is_cut_is_forgotten(marks, data):
    """No beginning of a file is taken for the whole."""
    raw = Marks(CLOCK.name, marks).encode()
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert Marks.parse(cut, CLOCK).marks == {}


@given(st.binary(max_size=300))
def test_anything_can_be_read(data):
    """Foreign bytes are no marks, and no error."""
    assert Marks.parse(data, CLOCK) == Marks(CLOCK.name)


@given(st.lists(st.text(max_size=120), max_size=4))
def test_lines_that_are_none_are_passed_over(lines):
    """Between a right beginning and a right end nothing can go wrong."""
    kept = [line.encode("ascii", "replace").replace(b"\n", b"").decode() for line in lines]
    kept = [line for line in kept if line.splitlines() == [line]]
    text = "\n".join(["kvbaton-marks 1 clock=a-boot", *kept, f"end {len(kept)}", ""])
    assert Marks.parse(text.encode(), CLOCK).marks == {}


def test_a_mark_is_kept_until_the_object_is_used():
    """The same use keeps it; another one, or a mark from the future, begins anew."""
    key = Key(Kind.SEGMENT, "0" * 64)
    marks = Marks(CLOCK.name, {key: Mark(5.0, 1000)})
    assert marks.again(Entry(key, 1, 5.0), 9000) == Mark(5.0, 1000)
    assert marks.again(Entry(key, 1, 5.5), 9000) == Mark(5.5, 9000)
    assert marks.again(Entry(key, 1, 5.0), 500) == Mark(5.0, 500)
    assert marks.again(Entry(Key(Kind.BATON, "0" * 64), 1, 5.0), 9000) == Mark(5.0, 9000)
