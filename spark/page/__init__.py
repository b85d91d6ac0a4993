# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file, made of the tables that it wrote; needs neither Spark nor Java."""
