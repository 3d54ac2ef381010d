"""Probes: checks of an attached cache that need the model."""
