"""Tuning: measuring codec plans on a model, and searching for smaller ones."""
