"""Named profiles, for layouts of every kind; nothing here needs torch."""

import pytest

from kvbaton.codecs.plan import check_plan, plan_from_json
from kvbaton.codecs.profiles import PROFILES, RECOMMENDED, bits_plan, profile
from kvbaton.codecs.registered import CODECS
from kvbaton.errors import FormatError, InputError
from kvbaton.types import FidelityClass, KVLayout, LayerKind, LayerLayout, Place, RopeSpec


def layout(
    dim: int = 64, *, kind: str = "default", window: int = 0, dtype: str = "F32"
) -> KVLayout:
    """Six layers; every other one a window layer where there is a window."""
    rope = RopeSpec(kind, "half", dim, 10000.0, 1.0, "0" * 64)
    full = LayerLayout(LayerKind.FULL, 2, dim, dim)
    other = LayerLayout(LayerKind.WINDOW, 2, dim, dim, window) if window else full
    return KVLayout(dtype, (full, other) * 3, (rope,))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("window", [0, 512])
def test_every_profile_has_a_plan_for_every_head(name: str, dim: int, window: int):
    """Head dimensions that are no power of two and window layers are encoded, too."""
    held = layout(dim, window=window)
    plan = profile(name).plan(held)
    check_plan(plan, held)
    assert plan.name == name
    assert plan.lossless == (name == "exact")


@pytest.mark.parametrize("name", RECOMMENDED)
def test_layer_0_has_eight_bits(name: str):
    """So that a receiver can hold it against the tokens."""
    keys, values = profile(name).plan(layout()).chains(0)
    assert (keys.packer.bits, values.packer.bits) == (8, 8)


@pytest.mark.parametrize("name", RECOMMENDED)
def test_the_first_tokens_stay_exact(name: str):
    """Every codec of a recommended profile keeps the same first tokens."""
    plan = profile(name).plan(layout())
    firsts = {c.first for pair in plan.layers for chain in pair for c in chain.codecs}
    assert len(firsts) == 1
    assert firsts > {0} or min(firsts) > 0


def test_bits_fall_from_profile_to_profile():
    """By stored bytes of one segment: each is smaller than the one before it."""
    held = layout()
    sizes = []
    for name in ("exact", *RECOMMENDED):
        keys, values = profile(name).plan(held).chains(3)
        shape = (2, 256, 64)
        sizes.append(
            keys.stored_bytes("F32", shape, Place("k", 3, 256, held.ropes[0]))
            + values.stored_bytes("F32", shape, Place("v", 3, 256))
        )
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_keys_whose_rotation_depends_on_the_length_stay_rotated(kind: str):
    """Their table is not known from a position alone."""
    keys, _ = profile("compact").plan(layout(kind=kind)).chains(2)
    assert [codec.name for codec in keys.codecs] == ["int"]


def test_an_unknown_profile_names_the_known_ones():
    """An input error whose hint lists them."""
    with pytest.raises(InputError, match="known: exact, near-lossless"):
        profile("huge")


@pytest.mark.parametrize("name", PROFILES)
def test_a_plan_survives_its_json(name: str):
    """What a record stores is the plan, whole."""
    plan = profile(name).plan(layout())
    again = plan_from_json(plan.to_json(), CODECS)
    assert again == plan


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"layers": [[0, 99]]}, "$.layers[0]"),
        ({"layers": [[0, -1]]}, "$.layers[0]"),
        ({"layers": []}, "$.layers"),
        ({"layers": [[0]]}, "$"),
        ({"chains": 5}, "$"),
        ({"name": 5}, "$"),
        ({"chains": [[{"name": "jpeg"}]], "layers": [[0, 0]]}, "$.chains[0][0]"),
        ({"chains": [[{"name": "hadamard", "version": 1, "block": 0, "first": 0}]]}, "$.chains[0]"),
    ],
)
def test_json_that_is_no_plan_is_refused(change: dict[str, object], at: str):
    """With the place."""
    good = profile("compact").plan(layout()).to_json()
    with pytest.raises(FormatError) as caught:
        plan_from_json(good | change, CODECS)
    assert caught.value.at == at


def test_a_plan_for_another_number_of_layers_is_refused():
    """The sentence says both numbers."""
    plan = bits_plan("x", layout(), lambda layer: (8, 8))
    other = KVLayout("F32", layout().layers[:4], layout().ropes)
    with pytest.raises(InputError, match="names 6 layers, the model has 4"):
        check_plan(plan, other)


def test_a_plan_lies_in_the_lossy_class():
    """Its fidelity names the profile, and the calibration once there is one."""
    plan = profile("compact").plan(layout())
    assert plan.fidelity.kind is FidelityClass.LOSSY
    assert plan.calibrated("ab" * 32).fidelity.calibration == "ab" * 32
