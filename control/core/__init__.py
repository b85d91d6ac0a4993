# SPDX-License-Identifier: Apache-2.0
"""What everybody in the control plane needs: the state machine, and the ports to what stands above or below."""
