"""The `roost` command: finds the subcommands, and turns errors into sentences.

Every command lives in a module of its own, which exposes a click command named `command`: the operator's in
control/cli/NAME.py, the developer's in control/dev/NAME.py. Several that are alike share one (SHARED), each under its
name. It is imported only when it is called: `roost --help` and `roost status` must not pay for FastAPI or SQLAlchemy.
"""

import importlib.util
import os
import sys

import click
from click.shell_completion import CompletionItem

from appliance import __version__
from control.cli.escaping import escape_output

OPERATOR = {
    "up": "Run the appliance.",
    "check-config": "Whether a configuration is good, and each mistake with its line.",
    "status": "How many connections are in which state, and what the packets met.",
    "top": "The same each second, what happens, and who talks most.",
    "connections": "List connections.",
    "show": "Everything known about one connection.",
    "explain": "Why a connection is not asleep, or does not wake.",
    "standby": "Close a connection's server link; keep its socket.",
    "idle": "Take a connection out of the kernel.",
    "sleep": "Move a connection's record to the database.",
    "wake": "Put a connection back into the kernel.",
    "close": "Close a connection, whatever its state.",
    "attach": "Speak with a client: stdin and stdout, as netcat.",
    "job": "The same for many connections: by a filter, or named in a file.",
    "policy": "Rules: which clients have which values of the policy.",
    "name": "Give a client a name by which servers reach it.",
    "tag": "Give a name tags, by which its client is found.",
    "agents": "The clients that agents speak for.",
    "dialled": "The clients that were dialled in vain.",
    "events": "The transitions, as they happened and as they happen.",
    "trace": "What the kernel does with clients' sockets: retransmissions, resets, states.",
    "attaches": "The servers that asked for a client, and what became of it.",
    "snapshots": "How many connections there were, and what happened, each minute.",
    "token": "Tokens of the API: who may ask it, and for what.",
    "audit": "The changes that were asked for: who, what, and what came of it.",
    "api": "Serve HTTP by the network, for operators and servers.",
    "export": "Transitions, attaches, snapshots and changes as Parquet.",
    "report": "What an export says of a fleet: how long connections stay in which state.",
    "backup": "What another machine needs to take this one's place, in one file.",
    "restore": "Put what is in such a file in its place, before the daemon starts.",
    "drain": "Leave every connection to another machine.",
    "unpin": "Let every sleeping connection go and detach from the interfaces.",
    "completion": "Let a shell complete what is typed: commands, options, connections.",
    "doctor": "What this machine must offer, present or missing, with the fix.",
}
DEVELOPER = {
    "demo": "25,000 real clients fall asleep, are woken, survive a crash.",
    "lab": "A network with the appliance at work in it, to try things in.",
    "test": "Lint, then every test.",
    "bench": "Measure.",
    "lint": "Check the sources: ruff, mypy, import-linter, clang-format, cppcheck, shellcheck.",
}
COMMANDS = OPERATOR | DEVELOPER
"""Name and one line of help of each command, in the order `roost --help` shows them. A wheel has the operator's."""


SHARED = dict.fromkeys(("standby", "idle", "sleep", "wake", "close"), "moving")
"""The file of each command that has none of its own."""


def module_of(command: str) -> str:
    """The module of a command."""
    return f"control.{'cli' if command in OPERATOR else 'dev'}.{SHARED.get(command, command).replace('-', '_')}"


def is_here(command: str) -> bool:
    """False: a developer's command, and this is an installed wheel."""
    return command in OPERATOR or importlib.util.find_spec("control.dev") is not None


FIXES = {
    "appliance.box.router.RouterError": "",
    "appliance.engine.library.EngineError": "",
    "appliance.lab.daemon.DaemonError": "",
    "appliance.lab.processes.PeerError": "",
    "control.api.process.ApiError": "",
    "control.config.reading.ConfigError": "",
    "control.daemon.error.DaemonError": "",
    "control.store.archive.ArchiveError": "",
    "control.store.database.StoreError": "",
    "builtins.PermissionError": "Run it as root: sudo ./roost ...",
    "sqlalchemy.exc.OperationalError": "The database cannot be used: full, locked by another process, its server gone?",
}
"""Errors that are the situation's fault, not the code's: class name -> what to do (empty: the message says it itself).

By name, so that naming a class here does not import its library."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if is_here(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise click.NoSuchCommand(cmd_name, possibilities=self.list_commands(ctx), ctx=ctx)
        if not is_here(cmd_name):
            raise click.ClickException(f"roost {cmd_name} needs the source tree: run ./roost in a checkout of Roost.")
        name = cmd_name if cmd_name in SHARED else "command"
        command: click.Command = getattr(importlib.import_module(module_of(cmd_name)), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click's, but that it imports no command."""
        found = [
            CompletionItem(one, help=COMMANDS[one]) for one in self.list_commands(ctx) if one.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="roost")
def cli() -> None:
    """Roost keeps millions of quiet TCP connections asleep and wakes them without a trace.

    \b
    sudo ./roost demo               see it at work, nothing configured
    sudo ./roost up -c roost.toml   run the appliance
    ./roost COMMAND --help          each command, with an example
    """


def explain(error: BaseException) -> str | None:
    """One or two lines for a person, or None when the error is a defect of ours and the traceback is wanted."""
    for kind in type(error).__mro__:
        fix = FIXES.get(f"{kind.__module__}.{kind.__qualname__}")
        if fix is not None:
            return f"Error: {error}\n{fix}".rstrip()
    return None


def main() -> None:
    """Entry point: 0 done, 1 could not be done (a sentence on stderr says why), 2 wrong usage."""
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") not in DEVELOPER:
        escape_output()
    try:
        cli.main(prog_name="roost")
    except Exception as error:
        message = explain(error)
        if message is None or os.environ.get("ROOST_DEBUG") == "1":
            raise
        click.echo(message, err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
