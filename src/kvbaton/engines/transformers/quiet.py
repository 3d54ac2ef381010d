"""Keeping transformers off the terminal: for programs that own it, never for the library."""

from __future__ import annotations


def silence() -> None:
    """Show no progress bars and log nothing below errors, in the whole process."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
