"""The append-only usage journal: frames, segments, progress slots, recovery."""
