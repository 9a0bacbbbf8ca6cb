"""What a table's log says, and whether it keeps the promises; read without Spark."""
