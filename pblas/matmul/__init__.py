"""Products of matrices: along one dimension, over grids, and pushed by GPUs."""
