# SPDX-License-Identifier: Apache-2.0
"""Test data and nothing else: the export of a fleet that there is not, whose truth is known."""
