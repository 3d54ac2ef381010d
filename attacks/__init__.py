"""Attacks on batons, as programs: ``python -m attacks`` runs all, ``python -m attacks.NAME`` one.

Each prints what was tried and what happened, and exits with 1 if an attack succeeded.
"""
