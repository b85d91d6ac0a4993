# SPDX-License-Identifier: Apache-2.0
"""Every interleaving of the engine and of packets at the inactive table, over the product's own C.

    scheduler.*     coroutines, switched at memory accesses; the search through all schedules
    model.c         packets, the scenarios, and what must hold in them
    product*.c      the XDP program, the guard
    loop.*          the engine's loop; the rest of the engine is linked as it is (explore.py has the list), but for
    absent.c        links, in-band requests, listeners and the like
    machine.*       the kernel around the engine: sockets, the ring, grace periods; and the control plane
    explore.py      builds and runs them

tests/unit/test_interleavings*.py run them all.
"""
