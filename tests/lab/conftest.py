# SPDX-License-Identifier: Apache-2.0
"""What the tests in the lab share."""

from tests.lab.fixtures import box, nat_free_lab, pytest_configure, unhurried

__all__ = ["box", "nat_free_lab", "pytest_configure", "unhurried"]
