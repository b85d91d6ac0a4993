# SPDX-License-Identifier: Apache-2.0
"""`roost wake ID`."""

from control.cli.client import action_command

command = action_command("wake", "Put a connection back into the kernel (IDLE or SLEEP to STANDBY).")
