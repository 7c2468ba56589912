"""What the insights say, in words, tones and shapes; no database, no web framework."""
