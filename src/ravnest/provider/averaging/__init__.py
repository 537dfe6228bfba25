"""The same parameters in several clusters, kept one model: averaged in rings, beside training."""
