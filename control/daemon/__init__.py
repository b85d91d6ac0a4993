# SPDX-License-Identifier: Apache-2.0
"""The daemon: what is made, wired and started in which order, and what is left when it ends."""
