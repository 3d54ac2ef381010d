"""Hand a cache over between two `generate` calls of your own.

Run it with a built-in model's folder, any checkpoint's folder or a Hugging Face id:
``python examples/own_generate_loop.py MODEL``.  Sender and receiver are one process here; with
``store="dir:///somewhere"`` in both calls they can be two.  In float32 the answer is the one that
a run without a hand-off gives; in bfloat16 both are right, and may differ as any two runs may that
cut the same prompt differently.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvbaton as kb


def main(path: str) -> tuple[str, str]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    engine = kb.wrap(model, tokenizer)  # identifies the model; you keep using it as before
    prompt = tokenizer("The baton changes hands when", return_tensors="pt")
    question = tokenizer("\nIn short:", add_special_tokens=False).input_ids
    greedy = {"do_sample": False, "max_new_tokens": 16}

    # The sender generates, and hands off what was computed on the way.
    said = model.generate(**prompt, **greedy, return_dict_in_generate=True)
    baton = kb.export_cache(engine, said, said.sequences[0])

    # The receiver adds its own tokens and goes on; only those are computed.
    cache, ids = kb.attach_cache(engine, baton, question)
    passed = {engine.cache_argument: cache}  # `cache=` from transformers 5.24 on
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), **passed, **greedy)

    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)
    return tokenizer.decode(answer[0]), tokenizer.decode(plain[0])


if __name__ == "__main__":
    by_baton, by_text = main(sys.argv[1])
    print(by_baton)
    print("the same as without a hand-off:", by_baton == by_text)
