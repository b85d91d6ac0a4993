# SPDX-License-Identifier: Apache-2.0
"""Ways for a server to reach a client: each one turns a server's connection into an attach."""
