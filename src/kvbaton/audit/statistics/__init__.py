"""Tests, intervals and power for paired trials; scipy and statsmodels do the sums."""
