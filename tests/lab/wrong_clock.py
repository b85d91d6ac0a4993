# SPDX-License-Identifier: Apache-2.0
"""A wall clock of one process's own, which jumps when the test says so. The machine's stays as it is."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *ahead_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WRONG_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*ahead_s), PROT_READ, MAP_SHARED, fd, 0);
    ahead_s = at == MAP_FAILED ? NULL : at;
    if (fd >= 0)
        close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int error = (int)syscall(SYS_clock_gettime, clock, now);
    if (!error && ahead_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (now)
        *now = t.tv_sec;
    return t.tv_sec;
}
"""


class WrongClock:
    """daemon.start(under=clock.under); clock.jump(3600)"""

    def __init__(self, directory: Path) -> None:
        self._ahead = directory / "ahead"
        self.jump(0)
        library = directory / "wrong_clock.so"
        build = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
        subprocess.run(build, input=SOURCE, text=True, check=True)
        self.under = ["env", f"LD_PRELOAD={library}", f"WRONG_CLOCK={self._ahead}"]

    def jump(self, ahead_s: int) -> None:
        """From now on the process's wall clock is so much ahead of the machine's."""
        with self._ahead.open("r+b" if self._ahead.exists() else "wb") as file:
            file.write(struct.pack("=q", ahead_s))
