"""The operator's commands, one a file; main.py finds them."""
