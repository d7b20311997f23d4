"""Programs to start from, and in `roll/` the smallest complete operation."""
