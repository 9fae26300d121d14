"""Benchmarks: each states workload, machine, median and spread, compares in one run, and asserts nothing."""
