"""Change the source a little and see whether the tests notice: `make mutate COUNT=320 SEED=1 PART=scale`.

`changes.py` finds the places of a file that can be changed. `__main__.py` runs the tests of a part on each changed file.
"""
