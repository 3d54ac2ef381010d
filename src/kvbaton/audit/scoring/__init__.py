"""Scorers: what an answer is worth, between 0 and 1, and whether it is right."""

from kvbaton.audit.scoring.judging import Judgement, Scorer
from kvbaton.audit.scoring.scorers import is_scorer, known_scorers, scorer

__all__ = ["Judgement", "Scorer", "is_scorer", "known_scorers", "scorer"]
