# SPDX-License-Identifier: Apache-2.0
"""The jobs: functions from DataFrames to DataFrames."""
