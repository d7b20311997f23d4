"""A matrix under another descriptor, which all other operations use to bring operands to their places."""
