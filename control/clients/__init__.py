# SPDX-License-Identifier: Apache-2.0
"""The clients of one daemon: finding, showing, naming and moving them, and what they set and ask for in band."""
