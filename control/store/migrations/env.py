# SPDX-License-Identifier: Apache-2.0
"""What alembic runs to have a database: the connection that `upgrade` was given, within its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
