"""Layer 4: the benches, at a size that proves they run; root."""
