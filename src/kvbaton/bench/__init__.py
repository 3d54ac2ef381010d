"""Benchmarks: ratios within one run, rivals kept honest.

``ttft`` measures the time to the first token of a take between two processes against text,
against what a user would write by hand, against a prefix cache in the process, and against the
floor; ``stores`` measures stores against a plain copy.  Only the processes that compute import
torch: whoever starts them does not.
"""
