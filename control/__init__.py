"""The control plane: states, policy, store, the daemon and the operator's commands."""
