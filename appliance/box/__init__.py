# SPDX-License-Identifier: Apache-2.0
"""The machine that the appliance runs on: what it must offer, what is set on it, what it can reach."""
