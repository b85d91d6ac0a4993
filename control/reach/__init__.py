"""How a server that asks by the proxy gets to its client: connected, or by agent, dialling, waiting."""
