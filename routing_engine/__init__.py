"""Which expert, which replica: features, gate, fallback table, and the torch engine.

Imports no sibling package.
"""
