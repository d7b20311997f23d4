"""What all operations share: checks of arguments, the value of a call and its choreography, planned operations."""
