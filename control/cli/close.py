# SPDX-License-Identifier: Apache-2.0
"""`roost close ID`."""

from control.cli.client import action_command

command = action_command("close", "Close a connection whatever its state; client and server are told with an RST.")
