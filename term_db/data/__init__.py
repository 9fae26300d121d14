"""Data files of the term dictionary."""
