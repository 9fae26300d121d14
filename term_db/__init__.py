"""Which words mean the same: dictionary, matcher, snapshots, interchange. Imports no sibling package."""
