"""Adapters behind the ``Backend`` port: how bytes reach an expert."""
