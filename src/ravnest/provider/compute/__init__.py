"""The mathematics of one stage. Everything here runs on the one thread that owns the weights."""
