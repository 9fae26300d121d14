"""The billing subcommands of `expertgate`; `APPS` and `reconcile` are what the entry point mounts.

Owns the list only; each group of commands is a module of `billing.commands`.
"""

from billing.commands.accounts import customers_app, keys_app, subscriptions_app
from billing.commands.books import db_app, reconcile
from billing.commands.invoices import invoices_app
from billing.commands.usage import usage_app

APPS = (db_app, customers_app, keys_app, subscriptions_app, usage_app, invoices_app)

__all__ = ["APPS", "reconcile"]
