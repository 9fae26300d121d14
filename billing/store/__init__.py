"""The only home of SQLAlchemy: schema and queries for SQLite and PostgreSQL."""
