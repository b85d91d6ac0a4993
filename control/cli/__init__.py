"""The operator's commands, one a file, or several that are alike; main.py finds them."""
