# SPDX-License-Identifier: Apache-2.0
"""Decisions, as pure functions of the configuration and of what the engine reports."""
