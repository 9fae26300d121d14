"""Invoices as JSON and PDF."""
