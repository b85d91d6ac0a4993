# SPDX-License-Identifier: Apache-2.0
"""What a page says of the tables of each job."""
