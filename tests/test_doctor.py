"""`kvbaton doctor`: every gate of one model and between two, and the noise floor."""

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.bench.tiny import checkpoint
from tests.engines import families
from tests.engines.chat_tokenizers import word_tokenizer

import kvbaton
from kvbaton import doctor
from kvbaton.bench.texts import Text
from kvbaton.cli.main import run
from kvbaton.doctor import Facts, Gate, Verdict, describe, mode_gates, model_gates, pair_gates
from kvbaton.doctor.noise import divergence
from kvbaton.engines.transformers import layout
from kvbaton.engines.transformers.load import wrap_model
from kvbaton.errors import FormatError, InputError, ModelUnavailable, UnsupportedModel

CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ m['content'] }}<|im_end|>{% endfor %}"


def outline(folder: Path, config: Any, **tokenizer: Any) -> Path:
    """A folder with a configuration and a tokenizer, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    word_tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def llama(**changed: Any) -> Any:
    """The configuration of a tiny Llama, with changes."""
    return transformers.LlamaConfig(**{**families.FAMILIES["llama"]().to_dict(), **changed})


def by_name(gates: tuple[Gate, ...]) -> dict[str, Gate]:
    """Gates by name; each name is there once."""
    found = {gate.name: gate for gate in gates}
    assert len(found) == len(gates)
    return found


def of_pair(tmp_path: Path, sender: Any, receiver: Any) -> dict[str, Gate]:
    """The gates between two configurations with one tokenizer."""
    both = [outline(tmp_path / name, c) for name, c in (("a", sender), ("b", receiver))]
    return by_name(pair_gates(*(describe(folder) for folder in both)))


def not_ok(gates: dict[str, Gate]) -> dict[str, str]:
    """Names and verdicts of the gates that are not ok."""
    return {name: g.verdict.value for name, g in gates.items() if g.verdict is not Verdict.OK}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_tested_family_passes_every_gate(family: str, tmp_path: Path) -> None:
    """A listed family is ok at each gate but the weights, which an outline does not have."""
    facts = describe(outline(tmp_path, families.FAMILIES[family]()))
    assert not_ok(by_name(model_gates(facts))) == {"weights": "blocked"}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_layout_of_an_outline_is_that_of_the_model(family: str, tmp_path: Path) -> None:
    """Without weights the doctor sees the layout that the loaded model has."""
    model = families.build(family)
    facts = describe(outline(tmp_path, model.config), dtype="float32")
    assert facts.layout == layout.build_layout(model, torch.float32)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.MambaConfig(), "state"),
        (transformers.GPT2Config(), "learned positions"),
        (transformers.StableLmConfig(), "not on the list"),
        (transformers.DeepseekV3Config(), "MLA"),
    ],
)
def test_a_family_that_is_refused_is_blocked_with_the_reason(
    config: Any, reason: str, tmp_path: Path
) -> None:
    """The family gate gives the reason, and gates that need a layout are blocked, not left out."""
    gates = by_name(model_gates(describe(outline(tmp_path, config))))
    assert gates["family"].verdict is Verdict.BLOCKED
    assert reason in gates["family"].sentence
    assert {gates[name].verdict for name in ("layers", "rope", "dtype")} == {Verdict.BLOCKED}
    assert len(gates) == 11


def test_heads_are_those_of_keys_and_values(tmp_path: Path) -> None:
    """`num_key_value_heads` is shown; the query heads are named as what does not count."""
    gate = by_name(model_gates(describe(outline(tmp_path, llama()))))["kv heads"]
    assert gate.values == ("2",)
    assert "4 query heads" in gate.sentence


def test_quantized_checkpoints_are_blocked(tmp_path: Path) -> None:
    """A quantization in the configuration blocks the weights, by name."""
    folder = outline(tmp_path, llama())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    gate = by_name(model_gates(describe(folder)))["weights"]
    assert (gate.verdict, gate.values) == (Verdict.BLOCKED, ("awq",))


def test_a_model_without_a_tokenizer_is_blocked_there(tmp_path: Path) -> None:
    """Tokenizer and template are blocked with a sentence; other gates still answer."""
    llama().save_pretrained(tmp_path)
    gates = by_name(model_gates(describe(tmp_path)))
    assert gates["tokenizer"].verdict is gates["template"].verdict is Verdict.BLOCKED
    assert gates["layers"].values == ("4 full",)


def test_windows_are_shown(tmp_path: Path) -> None:
    """Gemma 3 keeps three layers of four in a window of 12 tokens."""
    gates = by_name(model_gates(describe(outline(tmp_path, families.FAMILIES["gemma3"]()))))
    assert gates["layers"].values == ("1 full, 3 window",)
    assert gates["attention window"].values == ("12 tokens",)
    assert "; " in gates["rope"].values[0]


def test_a_model_and_its_copy_are_ok(tmp_path: Path) -> None:
    """Two folders with the same bytes pass every gate, so continue and shared-prefix are ok."""
    both = [checkpoint(tmp_path / name) for name in ("a", "b")]
    gates = pair_gates(*(describe(folder) for folder in both))
    assert not_ok(by_name(gates)) == {}
    assert by_name(gates)["weights"].sentence == "the same bytes"
    modes = by_name(mode_gates(gates))
    assert not_ok(modes) == {"slice": "convertible later"}


def test_a_fine_tune_differs_in_its_weights_only(tmp_path: Path) -> None:
    """Other weights of the same shape are convertible later, and no other gate says so."""
    first, second = (checkpoint(tmp_path / name) for name in ("a", "b"))
    model = families.build("smollm")
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    model.save_pretrained(second)
    gates = by_name(pair_gates(describe(first), describe(second)))
    assert not_ok(gates) == {"weights": "convertible later"}
    assert "fine-tune" in gates["weights"].sentence


@pytest.mark.parametrize(
    ("changed", "gate"),
    [
        ({"num_hidden_layers": 5}, "layers"),
        ({"num_key_value_heads": 4}, "kv heads"),
        ({"head_dim": 32}, "head dim"),
        ({"hidden_size": 128, "head_dim": 16}, "hidden size"),
        ({"rope_theta": 5e5, "rope_parameters": None}, "rope"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": None}, "rope"),
        ({"vocab_size": 384}, "vocabulary"),
        ({"rms_norm_eps": 1e-3}, "configuration"),
    ],
)
def test_each_structural_mismatch_has_its_gate(
    changed: dict[str, Any], gate: str, tmp_path: Path
) -> None:
    """One changed number is found by its own gate, and nothing but that one is another's fault."""
    gates = of_pair(tmp_path, llama(), llama(**changed))
    assert gates[gate].verdict is Verdict.LATER
    consequences = {"configuration", "weights"} | ({"rope"} if gate == "head dim" else set())
    assert set(not_ok(gates)) - consequences <= {gate}
    assert len(set(gates[gate].values)) != 1


def test_query_heads_alone_are_no_mismatch_of_the_cache(tmp_path: Path) -> None:
    """8 query heads instead of 4 over the same 2 key-value heads: the kv heads are the same."""
    gates = of_pair(tmp_path, llama(head_dim=16), llama(head_dim=16, num_attention_heads=8))
    assert gates["kv heads"].verdict is Verdict.OK
    assert "num_attention_heads" in gates["configuration"].sentence


def test_window_and_full_layers_do_not_match(tmp_path: Path) -> None:
    """A window changes what a layer keeps, whatever the heads are."""
    gates = of_pair(tmp_path, families.FAMILIES["qwen2"](), families.FAMILIES["qwen2-window"]())
    assert gates["layer kinds"].verdict is Verdict.LATER
    assert gates["layer kinds"].values == ("full", "full, window of 12")


def test_other_tokens_block(tmp_path: Path) -> None:
    """Where ids mean other texts every mode is blocked, and text still works."""
    first = describe(outline(tmp_path / "a", llama()))
    folder = outline(tmp_path / "b", llama())
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["sesquipedalian"])
    tokenizer.save_pretrained(folder)
    gates = pair_gates(first, describe(folder))
    assert by_name(gates)["tokenizer"].verdict is Verdict.BLOCKED
    modes = by_name(mode_gates(gates))
    assert {modes[m].verdict for m in ("continue", "shared-prefix", "slice")} == {Verdict.BLOCKED}
    assert modes["text"].verdict is Verdict.OK
    assert "tokenizer" in modes["continue"].sentence


def test_another_template_is_convertible_later(tmp_path: Path) -> None:
    """The same tokens under another chat template are another function."""
    first = describe(outline(tmp_path / "a", llama()))
    second = describe(outline(tmp_path / "b", llama(), chat_template=CHAT))
    gates = by_name(pair_gates(first, second))
    assert gates["template"].values == ("none", "its own")
    assert gates["template"].verdict is Verdict.LATER


def test_a_refused_model_blocks_the_pair(tmp_path: Path) -> None:
    """The reason names the model that is refused."""
    first = describe(outline(tmp_path / "a", llama()))
    second = describe(outline(tmp_path / "b", transformers.GPT2Config()), name="old one")
    gate = by_name(pair_gates(first, second))["supported"]
    assert (gate.verdict, gate.values) == (Verdict.BLOCKED, ("yes", "no"))
    assert gate.sentence.startswith("old one: ")


def test_weights_are_not_read_where_something_else_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes are hashed only if that can change the verdict."""
    monkeypatch.setattr(Facts, "weights_digest", lambda self: pytest.fail("weights were read"))
    gates = of_pair(tmp_path, llama(), llama(num_hidden_layers=5))
    assert gates["weights"].verdict is Verdict.LATER


def test_no_configuration_is_no_model(tmp_path: Path) -> None:
    """A folder without a configuration cannot be described."""
    with pytest.raises(ModelUnavailable):
        describe(tmp_path, offline=True)
    with pytest.raises(UnsupportedModel, match="float17"):
        describe(tmp_path, dtype="float17")


# --- the noise floor ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Any:
    """A tiny engine in float32."""
    return wrap_model(families.build("smollm"), word_tokenizer(), name="tiny")


def texts(count: int = 2) -> list[Text]:
    """Texts of 300 tokens and more; every byte is a token."""
    words = "The relay of words goes on, round {}, and every runner counts. "
    return [Text(f"text-{n}", words.format(n) * 6) for n in range(count)]


def test_divergence_is_that_of_the_textbook() -> None:
    """KL((1/2, 1/2) || (1/4, 3/4)) is ln(2)/2 + ln(2/3)/2; equal rows have none."""
    mine = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log()
    theirs = torch.tensor([[0.25, 0.75], [0.2, 0.8]]).log()
    kl, flips = divergence(mine, theirs)
    assert kl == pytest.approx([(math.log(2) + math.log(2 / 3)) / 2, 0], abs=1e-7)
    assert flips == 0.5


def test_one_chunk_is_one_shot(engine: Any) -> None:
    """With chunks as long as the text nothing differs: the floor is exactly 0."""
    floor = doctor.noise_floor(engine, texts=texts(), tokens=128, chunk=128, positions=64)
    assert (floor.kl, floor.flips) == (0, 0)
    assert all(text.kl_max == 0 for text in floor.texts)


@pytest.mark.parametrize(("tokens", "chunk", "positions"), [(128, 32, 32), (100, 32, 16)])
def test_float32_has_next_to_no_noise(engine: Any, tokens: int, chunk: int, positions: int) -> None:
    """Chunks add up in another order, which float32 hardly shows; positions agree pairwise."""
    floor = doctor.noise_floor(
        engine, texts=texts(), tokens=tokens, chunk=chunk, positions=positions
    )
    assert 0 <= floor.kl < 1e-6
    assert floor.flips == 0


def test_bfloat16_has_more_noise_than_float32(engine: Any) -> None:
    """The floor of the same weights in bfloat16 is no smaller, and belongs to another function.

    Kernels of some processors round alike whatever the chunk: there both floors are zero.
    """
    coarse = wrap_model(families.build("smollm", torch.bfloat16), word_tokenizer(), name="tiny")
    options: Any = {"texts": texts(), "tokens": 256, "chunk": 64, "positions": 64}
    fine_floor = doctor.noise_floor(engine, **options)
    coarse_floor = doctor.noise_floor(coarse, **options)
    assert coarse_floor.kl >= fine_floor.kl
    assert coarse_floor.kl > 0 or coarse_floor.flips == 0
    assert coarse_floor.function != fine_floor.function
    assert (coarse_floor.dtype, fine_floor.dtype) == ("BF16", "F32")


def test_progress_names_the_texts(engine: Any) -> None:
    """Whoever waits sees which text is under way."""
    said: list[str] = []
    doctor.noise_floor(
        engine, texts=texts(), tokens=64, chunk=32, positions=8, progress=said.append
    )
    assert said == ["noise floor: text-0 (1 of 2)", "noise floor: text-1 (2 of 2)"]


def test_a_stored_floor_is_found_by_function(engine: Any, tmp_path: Path) -> None:
    """What was stored comes back equal, for this function only, from a private folder."""
    assert doctor.stored_noise_floor(engine, tmp_path) is None
    floor = doctor.noise_floor(engine, texts=texts(), tokens=64, chunk=32, positions=8)
    file = doctor.store_noise_floor(floor, tmp_path)
    assert file.name == f"{engine.function.digest}.json"
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert doctor.stored_noise_floor(engine, tmp_path) == floor
    other = wrap_model(families.build("qwen2"), word_tokenizer())
    assert doctor.stored_noise_floor(other, tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "kvbaton noise floor 2"}'])
def test_a_file_that_is_no_floor_is_an_error(engine: Any, tmp_path: Path, content: str) -> None:
    """A damaged record is named, not taken for an absent one."""
    place = tmp_path / "noise" / f"{engine.function.digest}.json"
    place.parent.mkdir()
    place.write_text(content)
    with pytest.raises(FormatError, match="no noise floor") as caught:
        doctor.stored_noise_floor(engine, tmp_path)
    assert caught.value.at == str(place)


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": []},
        {"texts": [Text("short", "no")]},
        {"positions": 0},
        {"positions": 65},
        {"tokens": 513},
    ],
)
def test_measurements_that_make_no_sense_are_refused(engine: Any, wrong: dict[str, Any]) -> None:
    """No texts, short texts, and numbers that do not fit each other or the window."""
    options: dict[str, Any] = {"texts": texts(), "tokens": 128, "chunk": 64, "positions": 32}
    with pytest.raises(InputError):
        doctor.noise_floor(engine, **(options | wrong))


def shipped() -> dict[str, doctor.NoiseFloor]:
    """The records that come along, by file name."""
    folder = files("kvbaton").joinpath("data", "noise")
    return {
        file.name: doctor.NoiseFloor.from_json(json.loads(file.read_text(encoding="ascii")))
        for file in folder.iterdir()
        if file.name.endswith(".json")
    }


def test_records_that_come_along_are_named_by_their_function() -> None:
    """Each was measured on three texts or more of 1,024 tokens, 128 positions or more each."""
    records = shipped()
    assert {(r.model, r.dtype) for r in records.values()} >= {
        ("smollm2-135m", "BF16"),
        ("smollm2-135m", "F32"),
        ("qwen2.5-coder-0.5b", "BF16"),
    }
    for name, record in records.items():
        assert name == f"{record.function}.json"
        assert record.tokens >= 1024
        assert record.positions >= 128
        assert len(record.texts) >= 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("smollm2-135m", "bfloat16"),
        ("smollm2-135m", "float32"),
        ("qwen2.5-coder-0.5b", "bfloat16"),
    ],
)
def test_records_that_come_along_belong_to_the_built_in_models(
    model: str, dtype: str, tmp_path: Path
) -> None:
    """The function id of a loaded built-in model finds its record."""
    floor = doctor.stored_noise_floor(kvbaton.load(model, dtype=dtype), tmp_path)
    assert floor is not None
    assert floor.model == model


# --- the command -------------------------------------------------------------------------------


def test_the_command_prints_gates_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object with every gate; a blocked pair is a finding, so the exit code is 0."""
    sender, receiver = outline(tmp_path / "a", llama()), outline(tmp_path / "b", llama(head_dim=32))
    assert run(["doctor", str(sender), str(receiver), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["models"] == ["a", "b"]
    assert said["verdict"] == "convertible later"
    gate = next(gate for gate in said["gates"] if gate["gate"] == "head dim")
    assert gate == {
        "gate": "head dim",
        "verdict": "convertible later",
        "sentence": "channels must be mapped",
        "values": ["16", "32"],
    }
    assert [mode["gate"] for mode in said["modes"]] == [
        "continue",
        "shared-prefix",
        "slice",
        "text",
    ]
    assert said["noise_floor"] is None


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People see a row per gate."""
    assert run(["doctor", str(outline(tmp_path / "a", llama()))]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("family", "kv heads", "rope", "template", "context"))


def test_an_unknown_model_is_said_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 3 and the names that exist."""
    assert run(["doctor", "smollm3"]) == 3
    assert "smollm2-135m" in capsys.readouterr().err


def test_the_command_measures_once_and_then_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first --noise-floor measures and stores, the second prints the same without measuring."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KVBATON_CACHE_DIR", str(tmp_path / "cache"))
    folder = checkpoint(tmp_path / "model")
    calls = []
    original = doctor.noise_floor

    def small(engine: Any, **options: Any) -> doctor.NoiseFloor:
        calls.append(1)
        return original(engine, texts=texts(), tokens=64, chunk=32, positions=8, **options)

    monkeypatch.setattr(doctor, "noise_floor", small)
    found = []
    for _ in range(2):
        command = ["doctor", str(folder), "--dtype", "float32", "--noise-floor", "--json"]
        assert run(command) == 0
        found.append(json.loads(capsys.readouterr().out)["noise_floor"])
    assert found[0] == found[1]
    assert calls == [1]
    assert run(["doctor", str(folder), "--dtype", "float32", "--again"]) == 0
    assert "noise floor of model in F32" in capsys.readouterr().out
    assert calls == [1, 1]
