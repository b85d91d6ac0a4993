# SPDX-License-Identifier: Apache-2.0
"""What the tests in the lab share."""

from tests.lab.fixtures import box, empty_lab, engines, nat_free_lab, pytest_configure, unhurried

__all__ = ["box", "empty_lab", "engines", "nat_free_lab", "pytest_configure", "unhurried"]
