"""Engines: export a cache, attach a cache; attach(export(x)) gives the sender's own logits."""
