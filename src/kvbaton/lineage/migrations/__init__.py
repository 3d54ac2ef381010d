"""Steps from one version of the ledger's tables to the next."""
