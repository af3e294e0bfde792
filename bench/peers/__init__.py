"""Headrace beside its peers: what `bench/compare.py` measures, and how."""
