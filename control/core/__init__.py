# SPDX-License-Identifier: Apache-2.0
"""The state machine, and the ports by which the control plane's parts meet the engine and each other."""
