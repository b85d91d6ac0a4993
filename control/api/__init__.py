# SPDX-License-Identifier: Apache-2.0
"""The API over the network: a process of its own, without privileges, beside the daemon."""
