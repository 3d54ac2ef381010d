"""Alignment: slice and align; what is moved stands where a recomputation would put it."""
