# SPDX-License-Identifier: Apache-2.0
"""The clients of one daemon: which there are, what they are called, what they ask for in band."""
