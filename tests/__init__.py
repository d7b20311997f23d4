"""The tests. A package so that `tests` is this folder, whatever else is installed under that name."""
