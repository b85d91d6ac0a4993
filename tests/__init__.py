"""The tests, one directory a layer (see conftest.py)."""
