# SPDX-License-Identifier: Apache-2.0
"""The daemon: what is started in which order, what is left when it ends."""
