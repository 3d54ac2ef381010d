"""From the records of trials to a result: effects, verdicts, and where they come from."""
