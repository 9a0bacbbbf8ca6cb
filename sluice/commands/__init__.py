"""The commands of ``sluice``, as typer wants them."""
