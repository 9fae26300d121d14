"""The revisions, oldest first; each names what it does and can be taken back."""
