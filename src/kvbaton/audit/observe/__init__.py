"""From production: what receipts of ordinary use say about the effect of hand-offs.

Two ways: arms assigned by conversation (recommended), or receipts as they came, with weights that
make the two routes comparable in what is known about them.  Both end in the same estimate.
Assigning (``assignment``) and reading (``reading``) need neither scipy nor statsmodels.
"""
