# SPDX-License-Identifier: Apache-2.0
"""What the record says of a fleet: Spark jobs over what `roost export` writes, or a database has."""
