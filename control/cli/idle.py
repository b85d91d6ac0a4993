# SPDX-License-Identifier: Apache-2.0
"""`roost idle ID`."""

from control.cli.client import action_command

command = action_command(
    "idle", "Take a connection out of the kernel (to IDLE). It wakes when the client speaks or a server attaches."
)
