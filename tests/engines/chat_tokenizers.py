"""Small tokenizers with known ids, and chat templates that behave like those of real families.

The vocabularies are written out, not trained, so that ids can be checked by hand and are the same
under every version of the libraries.
"""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = (
    "<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|end_header|>",
    "<|eot|>", "<|eom|>", "[INST]", "[/INST]",
)  # fmt: skip
WORDS = (
    "system", "user", "assistant", "tool", "model", "System", "User", "Assistant", "Tool",
    "You", "Ġplan", "Ġcode", "Hello", "Ġthere", "Hi", "Go", "Ġon", "ĠGo", "Be", "Ġbrief", "think",
    "done", "name", "search", "ĠHello", "ĠYou",
)  # fmt: skip


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes, in a fixed order."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def wrapped(tokenizer: Tokenizer, **options: object) -> PreTrainedTokenizerFast:
    """A Hugging Face tokenizer with the special tokens registered."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        **options,
    )


def word_tokenizer(**options: object) -> PreTrainedTokenizerFast:
    """Byte-level: 11 special tokens (ids 0 to 10), 256 bytes (11 to 266), then ``WORDS``."""
    tokens = [*SPECIALS, *byte_alphabet(), *WORDS]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer, **options)


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level with merges across punctuation and line ends, as the regex of Qwen allows."""
    merges = [(".", "Ċ"), (".Ċ", "Ċ"), ("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("a", "b"), ("Ġ", "a"), ("Ċ", "Ġ")]
    tokens = [*SPECIALS, *byte_alphabet(), *dict.fromkeys(a + b for a, b in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2: a space before every text, byte tokens for what the vocabulary lacks."""
    space = "\N{LOWER ONE EIGHTH BLOCK}"
    words = ["Hello", "User", "Assistant", "plan", "You", "a", "b", ":", ".", "é"]
    # A merge for each word, with and without the space, built from left to right.
    merges: list[tuple[str, str]] = []
    for word in [*words, *(space + w for w in words)]:
        merges += [(word[:i], word[i]) for i in range(1, len(word))]
    merges = list(dict.fromkeys(merges))
    letters = sorted({character for word in words for character in word} | {space})
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = dict.fromkeys([*SPECIALS, *byte_tokens, *letters, *(a + b for a, b in merges)])
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<pad>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(space), normalizers.Replace(" ", space)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(space, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrapped(tokenizer)


def tokens_of(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """The tokens, parted by spaces."""
    return " ".join(tokenizer.convert_ids_to_tokens(list(ids)))


_TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
_OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

CHATML = "{% for m in messages %}" + _TURN + "{% endfor %}" + _OPEN

DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}"
    "{{ '<|im_start|>system\\nBe brief<|im_end|>\\n' }}{% endif %}" + CHATML
)
"""As SmolLM2 and Qwen2.5: a system prompt of its own where none is given."""

NO_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<|im_start|>' + role + '\\n' + m.content | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}"
)
"""As Gemma: no system role, strict alternation, trimmed content, its own name for the model."""

DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}"
    + _TURN
    + "{% endif %}{% endfor %}"
    + _OPEN
)
"""Leaves out every role but user and assistant without a word."""

STRIPS_REASONING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}"
    "{% set said = m.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') "
    "if '</think>' in m.content else '' %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + said "
    "+ '<|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}" + _OPEN
)
"""As Qwen3: reasoning only in the turns behind the last user turn."""

OPENS_REASONING = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "{{ '[INST]' + m.content }}{% elif m.role == 'assistant' %}"
    "{{ '[/INST]' + m.content.split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[/INST]<think>\\n' }}{% endif %}"
)
"""As DeepSeek-R1: the prompt opens the reasoning, earlier reasoning is cut."""

DATED = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|header|>system<|end_header|>\\n\\nToday: ' + strftime_now('%d %b %Y') + '\\n\\n' "
    "+ system + '<|eot|>' }}"
    "{% for m in rest %}"
    "{{ '<|header|>' + m.role + '<|end_header|>\\n\\n' + m.content | trim + '<|eot|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|end_header|>\\n\\n' }}{% endif %}"
)
"""As Llama 3: today's date in the system turn, trimmed content."""

SYSTEM_LAST = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{{ bos_token }}{% for m in rest %}"
    "{% if m.role == 'user' %}"
    "{{ '[INST] ' + (system + '\\n\\n' if loop.last and system is defined else '') "
    "+ m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}"
    "{% endfor %}"
)
"""As Mistral: the system prompt moves to the last user turn; no generation prompt."""

WITH_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson + '\\n' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + ' ' "
    "+ call.function.arguments | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}" + _OPEN
)
"""Announces tools, shows calls and their results."""

KEEPS_HISTORY = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "no system": NO_SYSTEM,
    "drops system": DROPS_SYSTEM,
    "dated": DATED,
    "with tools": WITH_TOOLS,
    "plain": None,
}
"""Templates that show earlier turns as they were."""

ALL = KEEPS_HISTORY | {
    "strips reasoning": STRIPS_REASONING,
    "opens reasoning": OPENS_REASONING,
    "system last": SYSTEM_LAST,
}
