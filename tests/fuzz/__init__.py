# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of what reads bytes that strangers wrote: the parsers of cext/ and the programs of ebpf/.

    fuzz_*.c        the targets: bytes in, claims about what comes out
    host/           the kernel around a BPF program, on the host
    world.*         a table with connections, and frames for them
    targets.py      what is compiled into a target, and how a target is run
    seeds.py        the inputs that a run starts from
    mutants.py      bugs to plant, each of which a target must find

python -m tests.fuzz TARGET ...    runs one by hand; tests/security/test_fuzz.py runs them all.
"""
