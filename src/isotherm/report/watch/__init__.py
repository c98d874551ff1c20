"""A run that is watched, on a terminal and as one page, from its record."""
