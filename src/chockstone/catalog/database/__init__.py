"""Connections to SQLite and PostgreSQL: transactions, retries, locks and upgrades.

Must not know what single tables mean.
"""

from chockstone.extras import require

require("server", "chockstone.catalog", packages=["sqlalchemy"])
