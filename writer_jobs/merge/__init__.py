"""Changes of another store, merged into a table so that it equals the store; they may be repeated or out of order."""
