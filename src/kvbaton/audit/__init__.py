"""What a hand-off itself causes, in speed and in quality: a randomized experiment.

A *unit* is a task for a sender and a receiver.  Every unit gets every *treatment*, so that what
would have happened otherwise is measured, not assumed.
"""
