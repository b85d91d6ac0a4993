"""Layer 3: forged, malformed and hostile packets; root."""
