# SPDX-License-Identifier: Apache-2.0
"""`roost completion SHELL`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what lets a shell complete commands and options, and connections, names and tags where the daemon answers
    within 0.2 s. The connections are those of the daemon that -c, ROOST_CONFIG or ROOST_URL names.

    \b
    Examples:
      eval "$(roost completion bash)"                              in ~/.bashrc; zsh in ~/.zshrc
      roost completion fish >~/.config/fish/completions/roost.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "roost", "_ROOST_COMPLETE").source())
