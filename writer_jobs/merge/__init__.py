"""Changes of another store, merged so that a table equals it: whatever is repeated, late or mixed up."""
