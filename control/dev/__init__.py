# SPDX-License-Identifier: Apache-2.0
"""The developer's commands: the demo, the lab, the tests, the benches and the static checks."""
