"""Alembic migrations of the pgbus schema."""
