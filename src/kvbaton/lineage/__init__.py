"""Lineage: the ledger of refs, of who builds on what, and of what has become stale."""
