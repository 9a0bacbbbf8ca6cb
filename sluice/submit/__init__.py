"""What a cluster needs of this project, and of a stack."""
