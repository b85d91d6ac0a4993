# SPDX-License-Identifier: Apache-2.0
"""The database: sleeping records, the history of transitions, the numbers of services."""
