"""Arguments of the operations, checked on one rank before all ranks agree on them."""
