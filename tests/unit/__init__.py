"""Layer 1: no privilege, no network."""
