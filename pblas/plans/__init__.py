"""Plans: values that describe the data movement and the GEMMs of an operation; integers only, equal on every rank."""
