# SPDX-License-Identifier: Apache-2.0
"""`roost demo`: story.py is what happens, outcome.py what it proves, screen.py how it looks, slab.py a kernel socket's
price."""
