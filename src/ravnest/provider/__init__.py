"""One provider's runtime: what to do next, the doing of it, and the talk with the neighbours."""
