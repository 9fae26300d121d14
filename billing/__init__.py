"""What a request costs: journal, holds, ledger, rating, invoices."""
