# SPDX-License-Identifier: Apache-2.0
"""What the database has on record, as Parquet files for programs that mine it."""
