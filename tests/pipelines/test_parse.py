"""Pipeline files are read strictly: whatever is wrong is named by its path into the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import EmptyInput, InputError, PipelineError
from kvbaton.pipelines import default_pipeline, load_pipeline, parse, parse_pipeline
from kvbaton.pipelines.schema import AgentSpec, ContextSpec, Edge, HandOffWhen, SamplingSpec
from kvbaton.types import Mode

ROOT = Path(__file__).parents[2]
FULL = """
name = "full"
description = "Everything that a file can say."
model = "smollm2-135m"
dtype = "float32"
input = "paper.txt"

[context]
title = "Paper"
notes = ["Be brief."]
facts = { unit = "metre" }

[[agents]]
name = "writer"
task = "Write."

[[agents]]
name = "planner"
system = "You plan."
task = "Plan: {input}"
max_new_tokens = 32
stop = ["END"]
sampling = { temperature = 0.7, top_p = 0.9, top_k = 40, seed = 7 }

[[agents]]
name = "left"
task = "Left?"

[[agents]]
name = "right"

[[edges]]
from = "planner"
to = ["left", "right"]
mode = "shared-prefix"
instruction = "Look."
hand_off_when = { marker = "GO" }

[[edges]]
from = "planner"
to = "writer"
join = ["left", "right"]
hand_off_when = { marker = "GO" }
"""


def one(text: str = "", **changes: Any) -> dict[str, Any]:
    """A pipeline of two agents, with changes at the top."""
    base = {
        "name": "small",
        "agents": [{"name": "a", "task": "Do."}, {"name": "b", "task": "Go on."}],
        "edges": [{"from": "a", "to": "b"}],
    }
    return {**base, **(tomllib.loads(text) if text else {}), **changes}


def test_a_full_file_is_read_field_by_field() -> None:
    """Every key ends in its field; agents stand in running order, an edge per receiver."""
    pipeline = parse_pipeline(tomllib.loads(FULL), folder=Path("here"))
    assert (pipeline.name, pipeline.model, pipeline.dtype) == ("full", "smollm2-135m", "float32")
    assert pipeline.input == Path("here/paper.txt")
    assert pipeline.context == ContextSpec("Paper", ("Be brief.",), (("unit", "metre"),))
    assert [agent.name for agent in pipeline.agents] == ["planner", "left", "right", "writer"]
    sampling = SamplingSpec(0.7, 0.9, 40, 7)
    planner = AgentSpec("planner", "You plan.", "Plan: {input}", 32, ("END",), sampling)
    assert pipeline.agents[0] == planner
    when = HandOffWhen("marker", "GO")
    look = {"mode": Mode.SHARED_PREFIX, "instruction": "Look.", "hand_off_when": when}
    assert pipeline.edges == (
        Edge("planner", "left", **look),
        Edge("planner", "right", **look),
        Edge("planner", "writer", join=("left", "right"), hand_off_when=when),
    )


def test_defaults_are_greedy_and_continue() -> None:
    """What a file leaves out is greedy decoding of 128 tokens and mode continue, at the end."""
    pipeline = parse_pipeline(one())
    assert pipeline.agents[0] == AgentSpec("a", "", "Do.", 128, (), SamplingSpec())
    assert pipeline.edges == (
        Edge("a", "b", Mode.CONTINUE, "", (), hand_off_when=HandOffWhen("end")),
    )


def agents(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """Agents a and b, and more."""
    return [*one()["agents"], *more]


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown key at the top", one(agnets=[]), "$.agnets", "did you mean agents?"),
    (
        "unknown key of an agent",
        one(agents=agents({"name": "c", "systm": "x"})),
        "$.agents[2].systm",
        "did you mean system?",
    ),
    ("unknown key of an edge", one(edges=[{"from": "a", "too": "b"}]), "$.edges[0].too", "to"),
    ("a key that needs quotes", one(**{"odd key": 1}), '$["odd key"]', "known: "),
    (
        "unknown key of sampling",
        one(agents=agents({"name": "c", "sampling": {"temp": 1}})),
        "$.agents[2].sampling.temp",
        "temperature",
    ),
    ("no name", {"agents": agents(), "edges": []}, "$", "'name' is missing"),
    ("a blank name", one(name=" "), "$.name", "blank"),
    ("a number as a name", one(name=7), "$.name", "a string, not an integer"),
    ("no agents", {"name": "x"}, "$", "'agents' is missing"),
    ("an empty list of agents", one(agents=[], edges=[]), "$.agents", "needs an agent"),
    ("agents as a table", one(agents={"name": "a"}), "$.agents", "a list, not a table"),
    ("an agent that is no table", one(agents=["a"]), "$.agents[0]", "a table, not a string"),
    ("edges as a string", one(edges="a to b"), "$.edges", "a list, not a string"),
    ("a name with spaces", one(agents=[{"name": "a b"}]), "$.agents[0].name", "letters"),
    ("a name twice", one(agents=agents({"name": "a"})), "$.agents[2].name", "two agents"),
    (
        "a boolean as a count",
        one(agents=agents({"name": "c", "max_new_tokens": True})),
        "$.agents[2].max_new_tokens",
        "an integer, not a boolean",
    ),
    (
        "no tokens",
        one(agents=agents({"name": "c", "max_new_tokens": 0})),
        "$.agents[2].max_new_tokens",
        "at least 1",
    ),
    (
        "a cold temperature",
        one(agents=agents({"name": "c", "sampling": {"temperature": -1}})),
        "$.agents[2].sampling.temperature",
        "at least 0",
    ),
    (
        "an infinite temperature",
        one(agents=agents({"name": "c", "sampling": {"temperature": float("inf")}})),
        "$.agents[2].sampling.temperature",
        "not inf",
    ),
    (
        "an empty nucleus",
        one(agents=agents({"name": "c", "sampling": {"top_p": 0}})),
        "$.agents[2].sampling.top_p",
        "more than 0",
    ),
    (
        "a stop string that is blank",
        one(agents=agents({"name": "c", "stop": ["x", " "]})),
        "$.agents[2].stop[1]",
        "blank",
    ),
    ("an unknown dtype", one(dtype="bf16"), "$.dtype", "did you mean bfloat16?"),
    ("a list as the input", one(input=["x"]), "$.input", "a string, not a list"),
    ("an unknown sender", one(edges=[{"from": "aa", "to": "b"}]), "$.edges[0].from", "known: a, b"),
    ("an unknown receiver", one(edges=[{"from": "a", "to": "c"}]), "$.edges[0].to", "'c'"),
    ("no receiver", one(edges=[{"from": "a", "to": []}]), "$.edges[0].to", "needs a receiver"),
    (
        "a receiver of no name",
        one(edges=[{"from": "a", "to": 1}]),
        "$.edges[0].to",
        "list of names",
    ),
    ("an edge to itself", one(edges=[{"from": "a", "to": "a"}]), "$.edges[0].to", "itself"),
    (
        "an unknown mode",
        one(edges=[{"from": "a", "to": "b", "mode": "share-prefix"}]),
        "$.edges[0].mode",
        "did you mean shared-prefix?",
    ),
    (
        "spans of a whole conversation",
        one(edges=[{"from": "a", "to": "b", "spans": "generated"}]),
        "$.edges[0].spans",
        'mode = "slice"',
    ),
    (
        "unknown spans",
        one(edges=[{"from": "a", "to": "b", "mode": "slice", "spans": "answer"}]),
        "$.edges[0].spans",
        "known: generated, prompt, turn, all",
    ),
    (
        "two slices of one sender",
        one(edges=[{"from": "a", "to": "b", "mode": "slice"}] * 2),
        "$.edges[1].to",
        "slices of several senders",
    ),
    (
        "a shared prefix without a context",
        one(edges=[{"from": "a", "to": "b", "mode": "shared-prefix"}]),
        "$.edges[0].mode",
        "add [context]",
    ),
    (
        "an unknown moment",
        one(edges=[{"from": "a", "to": "b", "hand_off_when": "soon"}]),
        "$.edges[0].hand_off_when",
        "tool-call",
    ),
    (
        "an empty marker",
        one(edges=[{"from": "a", "to": "b", "hand_off_when": {"marker": ""}}]),
        "$.edges[0].hand_off_when.marker",
        "blank",
    ),
    (
        "a moment that is a number",
        one(edges=[{"from": "a", "to": "b", "hand_off_when": 3}]),
        "$.edges[0].hand_off_when",
        "a string or a table",
    ),
    (
        "edges that disagree about the moment",
        one(
            agents=agents({"name": "c", "task": "x"}),
            edges=[
                {"from": "a", "to": "b"},
                {"from": "a", "to": "c", "hand_off_when": "tool-call"},
            ],
        ),
        "$.edges[1].hand_off_when",
        "disagree",
    ),
    (
        "two senders",
        one(
            agents=agents({"name": "c", "task": "x"}),
            edges=[{"from": "a", "to": ["b", "c"]}, {"from": "b", "to": "c"}],
        ),
        "$.edges[1].to",
        "already takes a baton from 'a'",
    ),
    (
        "an unknown name to join",
        one(edges=[{"from": "a", "to": "b", "join": ["d"]}]),
        "$.edges[0].join",
        "'d'",
    ),
    (
        "a join of oneself",
        one(edges=[{"from": "a", "to": "b", "join": ["b"]}]),
        "$.edges[0].join",
        "its own answer",
    ),
    (
        "a join of the same twice",
        one(edges=[{"from": "a", "to": "b", "join": ["a", "a"]}]),
        "$.edges[0].join",
        "twice",
    ),
    (
        "answers that nobody joins",
        one(edges=[{"from": "a", "to": "b", "instruction": "Read {answers}"}]),
        "$.edges[0].join",
        "no answers are joined",
    ),
    (
        "a slip in a placeholder",
        one(agents=[{"name": "a", "task": "Read {inputs}"}], edges=[]),
        "$.agents[0].task",
        "did you mean {input}?",
    ),
    (
        "a receiver with nothing to read",
        one(agents=[{"name": "a", "task": "x"}, {"name": "b"}]),
        "$.edges[0].instruction",
        "add no tokens",
    ),
    ("an agent that nobody reaches", one(edges=[]), "$.agents[1]", "no edge leads to 'b'"),
    (
        "a first agent without a task",
        one(agents=[{"name": "a"}, {"name": "b", "task": "x"}]),
        "$.agents",
        "no task",
    ),
    (
        "answers before there are any",
        one(agents=[{"name": "a", "task": "{answers}"}], edges=[]),
        "$.agents",
        "no answers yet",
    ),
    (
        "a circle of all",
        one(edges=[{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]),
        "$.edges",
        "a cycle",
    ),
    (
        "a circle beside a beginning",
        one(
            agents=agents({"name": "c", "task": "x"}),
            edges=[{"from": "b", "to": "c"}, {"from": "c", "to": "b"}],
        ),
        "$.edges[1]",
        "a cycle: b waits for c waits for b",
    ),
    (
        "a circle through a join",
        one(
            agents=agents({"name": "c", "task": "x"}),
            edges=[
                {"from": "a", "to": "b", "join": ["c"]},
                {"from": "b", "to": "c"},
            ],
        ),
        "$.edges[0]",
        "a cycle: b waits for c waits for b",
    ),
    ("an empty context", one(context={}), "$.context", "empty"),
    ("a fact that is a number", one(context={"facts": {"x": 1}}), "$.context.facts.x", "a string"),
    ("facts as a list", one(context={"facts": []}), "$.context.facts", "a table, not a list"),
    ("a title of two lines", one(context={"title": "a\nb"}), "$.context.documents", "one line"),
    ("no table at all", [], "$", "a table, not a list"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("value", "at", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_is_wrong_is_named_by_its_path(value: Any, at: str, said: str) -> None:
    """Each mistake is a PipelineError with the path into the file and words that help."""
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(value)
    assert caught.value.at == at
    assert said in f"{caught.value.sentence} ({caught.value.hint})"


def test_a_cascade_in_any_order_of_the_file_runs_in_order() -> None:
    """Edges decide who runs first, not the order of the file."""
    edges = [{"from": "c", "to": "b"}, {"from": "b", "to": "a"}]
    pipeline = parse_pipeline(one(agents=agents({"name": "c", "task": "x"}), edges=edges))
    assert [agent.name for agent in pipeline.agents] == ["c", "b", "a"]


def test_braces_that_are_no_placeholders_are_left_alone() -> None:
    """JSON and code in a task are no slips."""
    said = '{"name": "x"} {} {n} {result} {question}'
    pipeline = parse_pipeline(one(agents=[{"name": "a", "task": said}], edges=[]))
    assert pipeline.agents[0].task == said


# --- files -------------------------------------------------------------------------------------


def write(folder: Path, text: str, document: bytes | None = None) -> Path:
    """A pipeline file, with its document beside it."""
    (folder / "p.toml").write_text(text, encoding="utf-8")
    if document is not None:
        (folder / "paper.txt").write_bytes(document)
    return folder / "p.toml"


def test_the_input_lies_beside_the_pipeline(tmp_path: Path) -> None:
    """A relative input is relative to the pipeline's own folder; white space around it goes."""
    path = write(tmp_path, FULL, b"\xef\xbb\xbf  Facts.\r\nMore.\n")
    assert load_pipeline(path).document == "Facts.\nMore."


def test_another_document_can_be_given(tmp_path: Path) -> None:
    """A text that is given replaces the file's own input, which need not even exist."""
    assert load_pipeline(write(tmp_path, FULL), document=" Other. ").document == "Other."


def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    """A slip in the TOML itself gives the line and column where it was found."""
    with pytest.raises(PipelineError, match=r"p\.toml is not TOML: .*line 2, column"):
        load_pipeline(write(tmp_path, 'name = "x"\nagents = ]\n'))


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    """The sentence has the file's name, the path is the one into it."""
    with pytest.raises(PipelineError, match=r"p\.toml: unknown key 'nmae'") as caught:
        load_pipeline(write(tmp_path, FULL.replace("name = ", "nmae = ", 1)))
    assert caught.value.at == "$.nmae"
    assert "name" in caught.value.hint


@pytest.mark.parametrize(
    ("document", "error", "said"),
    [
        (None, InputError, "input document cannot be read"),
        (b" \n", EmptyInput, "blank"),
        (b"\xff\xfe", InputError, "not UTF-8"),
    ],
    ids=["missing", "blank", "not text"],
)
def test_a_document_that_cannot_be_read_is_said(
    tmp_path: Path, document: bytes | None, error: type[InputError], said: str
) -> None:
    """A missing, blank or unreadable input has its own error."""
    with pytest.raises(error, match=said):
        load_pipeline(write(tmp_path, FULL, document))


@pytest.mark.parametrize("name", ["", "a\0b", "no-such-file.toml", "."])
def test_a_pipeline_that_cannot_be_read_is_an_input_error(name: str) -> None:
    """Whatever a path is, reading it fails with an error of ours."""
    with pytest.raises(InputError, match="the pipeline cannot be read"):
        load_pipeline(name)


def test_an_input_that_is_missing_or_not_read_is_said(tmp_path: Path) -> None:
    """A task that reads an input needs one, and an input needs somebody who reads it."""
    reads = 'name = "x"\nagents = [{ name = "a", task = "{input}" }]'
    with pytest.raises(PipelineError, match="'input' is missing"):
        load_pipeline(write(tmp_path, reads))
    assert load_pipeline(write(tmp_path, reads), document="x").document == "x"
    unread = 'name = "x"\ninput = "paper.txt"\nagents = [{ name = "a", task = "Go" }]'
    with pytest.raises(PipelineError, match="nothing reads the input"):
        load_pipeline(write(tmp_path, unread, b"x"))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    """A pipeline file has a limit, checked before it is parsed."""
    with pytest.raises(InputError, match="larger than"):
        load_pipeline(write(tmp_path, "# " + "x" * (1 << 20)))


def test_the_shipped_pipeline_is_a_planner_three_workers_and_a_writer() -> None:
    """The default hands the planner's baton to three workers and to the writer who joins them."""
    pipeline = default_pipeline()
    names = [agent.name for agent in pipeline.agents]
    first, *workers, last = names
    assert len(workers) == 3
    assert [(e.sender, e.receiver) for e in pipeline.edges] == [
        (first, n) for n in [*workers, last]
    ]
    assert pipeline.edges[-1].join == tuple(workers)
    assert len({agent.task for agent in pipeline.agents[1:4]}) == 3


# --- whatever a file holds ---------------------------------------------------------------------

OF_A_PIPELINE = [*parse._TOP, *parse._AGENT, *parse._SAMPLING, *parse._EDGE, *parse._CONTEXT]
KEYS = [*OF_A_PIPELINE, "marker", "a", "b", "x"]
LEAVES = (
    st.sampled_from([*KEYS, "continue", "end", "{input}", "{answers}", "", "a\0"])
    | st.text(max_size=6)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.dates()
    | st.none()
    | st.binary(max_size=2)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=20,
)
NAMES = st.sampled_from(["a", "b", "c", "d"])
AGENTS = st.fixed_dictionaries({"name": NAMES, "task": st.just("x")})
EDGES = st.fixed_dictionaries(
    {"from": NAMES, "to": NAMES | st.lists(NAMES, max_size=3)},
    optional={"join": st.lists(NAMES, max_size=2)},
)


@given(VALUES)
def test_any_value_is_a_pipeline_or_a_typed_error(value: Any) -> None:
    """Nothing that a TOML file could hold, or anything else, gives a foreign exception."""
    try:
        parse_pipeline(value)
    except PipelineError as error:
        assert error.at.startswith("$")


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_change_of_a_pipeline_is_a_pipeline_or_a_typed_error(changes: Any) -> None:
    """A good pipeline with anything in place of its parts stays good or is refused with a path."""
    try:
        parse_pipeline(one(**changes))
    except PipelineError as error:
        assert error.at.startswith("$")


@given(st.lists(AGENTS, min_size=1, max_size=4), st.lists(EDGES, max_size=5))
def test_agents_run_behind_everything_that_they_read(found: Any, edges: Any) -> None:
    """In a graph that is accepted, everybody runs once, behind its sender and those it joins."""
    try:
        pipeline = parse_pipeline({"name": "x", "agents": found, "edges": edges})
    except PipelineError:
        return
    order = [agent.name for agent in pipeline.agents]
    assert sorted(order) == sorted(agent["name"] for agent in found)
    for edge in pipeline.edges:
        for read in (edge.sender, *edge.join):
            assert order.index(read) < order.index(edge.receiver)
    assert len(pipeline.edges) == len(order) - 1


def test_the_guide_lists_every_key() -> None:
    """The tables of the guide name exactly the keys that are read."""
    text = (ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(OF_A_PIPELINE)
