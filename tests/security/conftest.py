# SPDX-License-Identifier: Apache-2.0
"""What the security tests share with those in the lab."""

from tests.lab.fixtures import box, empty_lab, engines, nat_free_lab, pytest_configure, unhurried

__all__ = ["box", "empty_lab", "engines", "nat_free_lab", "pytest_configure", "unhurried"]
