"""Plans that users write."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvbaton.codecs.plan_spec import plan_from_spec
from kvbaton.errors import InputError
from kvbaton.types import KVLayout, LayerKind, LayerLayout, RopeSpec

ROPE = RopeSpec("default", "half", 64, 10000.0, 1.0, "0" * 64)
LAYER = LayerLayout(LayerKind.FULL, kv_heads=2, k_dim=64, v_dim=64)
LAYOUT = KVLayout("BF16", (LAYER,) * 12, (ROPE,))


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "tune-codecs.md"


def names(chain: Any) -> list[str]:
    """Names of a chain's codecs."""
    return [codec.name for codec in chain.codecs]


def test_the_first_rule_that_names_a_layer_decides():
    """Layers 0 to 9 are raw, the rest have 8-bit keys and 4-bit values."""
    plan = plan_from_spec(
        {
            "name": "mine",
            "rules": [
                {"layers": "0-9", "codec": "raw"},
                {"layers": "rest", "keys": "int8", "values": "int4"},
            ],
        },
        LAYOUT,
    )
    assert plan.name == "mine"
    assert all(names(chain) == ["raw"] for layer in range(10) for chain in plan.chains(layer))
    keys, values = plan.chains(10)
    assert (keys.packer.bits, values.packer.bits) == (8, 4)
    assert plan.chains(11) == (keys, values)
    assert not plan.lossless


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        (7, {7}),
        ("7", {7}),
        ("10-", {10, 11}),
        ("0-2", {0, 1, 2}),
        ([0, 5, 11], {0, 5, 11}),
        ("rest", set(range(12))),
    ],
)
def test_layers_are_named_in_several_ways(layers: Any, named: set[int]):
    """A number, a range, an open range, a list, or the rest."""
    rules = [{"layers": layers, "codec": "int8"}, {"codec": "raw"}]
    plan = plan_from_spec({"rules": rules}, LAYOUT)
    lossy = {i for i in range(12) if names(plan.chains(i)[0]) != ["raw"]}
    assert lossy == named


def test_a_codec_may_be_spelled_out():
    """An object is one codec with its fields, and a list of objects is a chain."""
    values = [
        {"name": "hadamard", "first": 2},
        {"name": "int", "bits": 3, "axis": "token", "group": 32, "first": 2},
    ]
    plan = plan_from_spec({"rules": [{"keys": {"name": "raw"}, "values": values}]}, LAYOUT)
    chain = plan.chains(3)[1]
    assert names(chain) == ["hadamard", "int"]
    assert (chain.packer.bits, chain.packer.group, chain.packer.first) == (3, 32, 2)


def test_first_tokens_of_named_codecs_are_those_of_the_plan():
    """``first`` says how many tokens stay exact."""
    plan = plan_from_spec({"first": 2, "rules": [{"codec": "int4"}]}, LAYOUT)
    assert {codec.first for chain in plan.chains(1) for codec in chain.codecs} == {2}


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ([], "$"),
        ({}, "$.rules"),
        ({"rules": []}, "$.rules"),
        ({"rules": ["raw"]}, "$.rules[0]"),
        ({"rule": []}, "$"),
        ({"name": "No Spaces", "rules": [{"codec": "raw"}]}, "$.name"),
        ({"first": -1, "rules": [{"codec": "raw"}]}, "$.first"),
        ({"rules": [{"layers": "0-3", "codec": "raw"}]}, "$.rules"),
        ({"rules": [{"layers": "0-12", "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"layers": 12, "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"layers": -1, "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"layers": True, "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"layers": [0, 99], "codec": "raw"}]}, "$.rules[0].layers[1]"),
        ({"rules": [{"layers": "5-3", "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"layers": "some", "codec": "raw"}]}, "$.rules[0].layers"),
        ({"rules": [{"keys": "raw"}]}, "$.rules[0]"),
        ({"rules": [{"codec": "int9"}]}, "$.rules[0].codec"),
        ({"rules": [{"codec": 8}]}, "$.rules[0].codec"),
        ({"rules": [{"codec": {"name": "jpeg"}}]}, "$.rules[0].codec"),
        ({"rules": [{"codec": {"name": "int", "colour": 1}}]}, "$.rules[0].codec"),
        ({"rules": [{"codec": {"name": "int", "bits": 9}}]}, "$.rules[0].codec.bits"),
        ({"rules": [{"codec": [{"name": "hadamard"}]}]}, "$.rules[0].codec"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(spec: Any, at: str):
    """Every error of a plan is an input error with the path into it."""
    with pytest.raises(InputError) as caught:
        plan_from_spec(spec, LAYOUT)
    assert caught.value.at == at


def test_groups_that_do_not_divide_the_head_are_refused():
    """The layer, the rule and the field are named."""
    coarse = {"name": "int", "bits": 4, "axis": "token", "group": 48}
    rules = [{"layers": "0-4", "codec": "raw"}, {"keys": "raw", "values": coarse}]
    with pytest.raises(InputError, match="layer 5: groups of 48") as caught:
        plan_from_spec({"rules": rules}, LAYOUT)
    assert caught.value.at == "$.rules[1].values.group"


def test_the_guide_s_rules_are_a_plan():
    """Ten raw layers, then 8-bit keys and 4-bit values in groups of 32 channels."""
    (rules,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    plan = plan_from_spec(tomllib.loads(rules), LAYOUT)
    assert plan.name == "mine"
    assert names(plan.chains(9)[0]) == ["raw"]
    keys, values = plan.chains(10)
    assert (keys.packer.bits, keys.packer.first) == (8, 4)
    assert (values.packer.bits, values.packer.group, values.packer.first) == (4, 32, 4)
