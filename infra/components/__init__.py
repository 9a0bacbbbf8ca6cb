"""The parts of the infrastructure, one file each; ``infra/__main__.py`` wires them."""
