# SPDX-License-Identifier: Apache-2.0
"""Batches of the engine's events in, batches of commands out."""
