"""The push protocol: the operations of each rank in one execution, as integers."""
