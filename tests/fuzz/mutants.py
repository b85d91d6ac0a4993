# SPDX-License-Identifier: Apache-2.0
"""Bugs that the fuzz targets must find."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "a VLAN tag may lie behind the frame's end",
        "xdp",
        "ebpf/packet.h",
        "        if ((void *)(tag + 2) > end)\n            return 0;\n",
        "",
        "AddressSanitizer: use-after-poison",
    ),
    Mutant(
        "the TCP checksum is not looked at",
        "xdp",
        "ebpf/packet.h",
        "        if (fold(sum))\n            return -1;\n",
        "",
        "CLAIM BROKEN",
    ),
    Mutant(
        "an answer acknowledges one byte too many",
        "xdp",
        "ebpf/inactive.bpf.c",
        ".ack = ka->rcv_nxt,",
        ".ack = ka->rcv_nxt + 1,",
        "an answer that acknowledges",
    ),
    Mutant(
        "SACK is agreed to with everybody",
        "xdp",
        "ebpf/born.h",
        "carried = o->wscale | (o->sack ? TS_SACK : 0),",
        "carried = o->wscale | TS_SACK,",
        "somebody was born with SACK, or without",
    ),
    Mutant(
        "a SYN of Linux is not summed",
        "xdp",
        "ebpf/fast_born.h",
        " || fold_words(pseudo + words(tcp_words, 10)) != 0xffff)",
        ")",
        "CLAIM BROKEN",
    ),
    Mutant(
        "nobody notes whose SYN goes to the stack",
        "xdp",
        "ebpf/fast_born.h",
        "        roost_socket_note(sockets, key_hash, now_s);\n",
        "",
        "was not noted",
    ),
    Mutant(
        "an answer keeps the frame's length",
        "xdp",
        "ebpf/reply.h",
        "    if (bpf_xdp_adjust_tail(ctx, length - (__s32)bpf_xdp_get_buff_len(ctx)))\n        return XDP_DROP;\n",
        "",
        "CLAIM BROKEN",
    ),
    Mutant(
        "a local frame may be longer than its place in the ring",
        "tc",
        "ebpf/loopback.bpf.c",
        "length < ETH_HLEN || length > (size) ||",
        "length < ETH_HLEN ||",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    Mutant(
        "steering keeps a socket that it looked up",
        "tc",
        "ebpf/steer.bpf.c",
        "    bpf_sk_release(sk);\n    return owner;",
        "    return owner;",
        "a socket was not released",
    ),
    Mutant(
        "an extension header may lie behind the frame's end",
        "segment",
        "cext/segment.c",
        "        if (at + 8 > rest)\n            return false;\n",
        "",
        "AddressSanitizer: heap-buffer-overflow",
    ),
    Mutant(
        "a held frame goes on as if it began anew",
        "inband",
        "cext/inband.c",
        "viable(*data, *length, h->length)",
        "viable(*data, *length, 0)",
        "in pieces",
    ),
    Mutant(
        "a frame may be shorter than its check",
        "inband",
        "cext/inband.c",
        "if (length < SHORTEST || memcmp",
        "if (memcmp",
        "AddressSanitizer",
    ),
    Mutant(
        "version 2 says that it is shorter than it is",
        "proxy",
        "cext/proxy_header.c",
        "htons((uint16_t)(2 * size + 4))",
        "htons((uint16_t)(2 * size))",
        "not the beginning of version 2",
    ),
)
