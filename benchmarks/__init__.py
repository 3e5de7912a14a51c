"""Benchmarks, one file for each native module or room; `make bench` runs and publishes them.

With ENGINE_BENCH_TINY=1 each shrinks its sizes, and the suite runs every one of them once.
"""
