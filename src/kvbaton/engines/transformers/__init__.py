"""The engine for decoder-only models of Hugging Face transformers."""
