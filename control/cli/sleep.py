# SPDX-License-Identifier: Apache-2.0
"""`roost sleep ID`."""

from control.cli.client import action_command

command = action_command("sleep", "Move a connection's record to the database (to SLEEP), by way of IDLE.")
