# SPDX-License-Identifier: Apache-2.0
"""`roost standby ID`."""

from control.cli.client import action_command

command = action_command("standby", "Close a connection's link to its server and keep its socket (ACTIVE to STANDBY).")
