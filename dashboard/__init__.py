"""The operator's console, a Flask blueprint. It is not part of this release yet."""
