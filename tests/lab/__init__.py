"""Layer 2: real clients, appliance and servers in network namespaces; root."""
