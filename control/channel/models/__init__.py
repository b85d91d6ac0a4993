# SPDX-License-Identifier: Apache-2.0
"""What the API answers, for its document (control/api/document.py) alone: nothing of it is imported where requests are
answered. A key that is not in a model is in no answer."""
