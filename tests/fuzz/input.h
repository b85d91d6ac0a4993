/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target does with the fuzzer's bytes: takes its choices from them, and claims what must hold. */
#ifndef ROOST_FUZZ_INPUT_H
#define ROOST_FUZZ_INPUT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct input {
    const uint8_t *at, *end;
};

/* Little-endian; when the input is used up, zeros. */
static inline uint32_t take(struct input *in, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes && in->at < in->end; i++)
        value |= (uint32_t)*in->at++ << 8 * i;
    return value;
}

/* Up to length bytes, where they lie; *got: how many. */
static inline const uint8_t *take_bytes(struct input *in, size_t length, size_t *got) {
    const uint8_t *from = in->at;
    *got = (size_t)(in->end - in->at) < length ? (size_t)(in->end - in->at) : length;
    in->at += *got;
    return from;
}

/* Ends the run with a sentence when a property does not hold; libFuzzer then keeps the input. */
__attribute__((format(printf, 2, 3))) static inline void claim(int holds, const char *format, ...) {
    if (holds)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("CLAIM BROKEN: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

#endif
