"""The typer commands of ``sluice``."""
