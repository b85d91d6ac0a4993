"""How a server gets to its client: linked when it is connected, and the ways that are left when it is not."""
