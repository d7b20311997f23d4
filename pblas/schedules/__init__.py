"""The push protocol: operations, a builder, and one schedule for each family of plans. Pure."""
