# SPDX-License-Identifier: Apache-2.0
"""The loop between engine and store: batches of events in, batches of commands out."""
