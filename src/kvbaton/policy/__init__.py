"""Policy: which route; pure functions of a manifest and a context."""
