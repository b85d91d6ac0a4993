# SPDX-License-Identifier: Apache-2.0
"""Every interleaving of the engine and of packets at the inactive table, over the product's own C.

    scheduler.*     coroutines, switched at memory accesses; the search through all schedules
    model.c         sockets, connections and packets; the scenarios and what must hold in them
    product*.c      the XDP program, the guard
    explore.py      builds and runs them

tests/unit/test_interleavings.py runs them all.
"""
