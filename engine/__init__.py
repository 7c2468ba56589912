"""The engine: durable workflows and jobs on PostgreSQL, without any web framework."""
