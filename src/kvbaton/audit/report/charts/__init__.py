"""Charts of a report: SVG with a name, a text that states the numbers, and the same as a table."""
