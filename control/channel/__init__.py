# SPDX-License-Identifier: Apache-2.0
"""The local API: what the CLI and the console ask the daemon."""
