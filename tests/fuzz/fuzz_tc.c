// SPDX-License-Identifier: Apache-2.0
/*
 * The programs beside XDP, each with the frames that it may meet: guard.bpf.c (egress), loopback.bpf.c and steer.bpf.c
 * (ingress), lookup.bpf.c (a 4-tuple on its way to a listener), local_connect.bpf.c (a socket before it connects). The claims:
 *
 *     the guard stops an RST exactly where its connection is in the table, and wakes none; the stack's own one, where its
 *     connection may be asleep without a slot, and asks about that one
 *     loopback takes exactly what is for a connection in the table, and hands it over whole; a door gets exactly the SYNs with
 *     our mark
 *     a socket is bound and marked exactly where it is TCP's, has no port yet, is the daemon's network namespace's, and
 *     connects to a client that has a connection
 *     no listener gets a packet of a connection in the table, nor one of a connection that may be asleep without a slot
 *     where XDP would have seen it; every other key is noted, for it may get a socket, while clients may be born asleep
 *     steering marks what is ours, answers with an RST only where it was told to refuse, and leaves the rest as it was;
 *     it releases every socket that it looked up
 */
#include "host/kernel.h"
#include "world.h"

#include "reference.h"

#include "ebpf/shared/judge.h"

#define _license guard_license
#include "ebpf/tc/guard.bpf.c"
#undef _license
#define _license loopback_license
#include "ebpf/tc/loopback.bpf.c"
#undef _license
#define _license lookup_license
#include "ebpf/socket/lookup.bpf.c"
#undef _license
#define _license steer_license
#include "ebpf/tc/steer.bpf.c"
#undef _license
#define _license local_connect_license
#include "ebpf/socket/local_connect.bpf.c"

#include "host/maps.h"

enum { /* what the input asks for */
    DO_GUARD,
    DO_LOOPBACK,
    DO_LOOKUP,
    DO_STEER_CLIENTS,
    DO_STEER_SERVERS,
    DO_PHASE,
    DO_REMOVE,
    DO_TROUBLE,
    DO_MANAGE,
    DO_FILTER,
    DO_CONNECT,
    DOES
};

#define MARK 0x00abcdefu /* bits of the mark that are not ours */

static struct world world;
static struct roost_births_gate gate;
static struct roost_sockets sockets;
static struct roost_own daemon;

static void give_maps(void) {
    ROOST_SHARED_MAPS(HOST_MAP)
    ROOST_STEER_MAPS(HOST_MAP)
    ROOST_LOOPBACK_MAPS(HOST_MAP)
    ROOST_LOCAL_CONNECT_MAPS(HOST_MAP)
    world_give_maps(&world, &config, &tables4, &tables6, &endpoints);
    world_give_filter(&world, &filter, &filter_gate, &strangers);
    host_map_array(&births_gate, &gate, 1, sizeof(gate));
    host_map_array(&births_sockets, &sockets, 1, sizeof(sockets));
    host_map_array(&own, &daemon, 1, sizeof(daemon));
    host_map_hash(&managed, 8, sizeof(struct roost_managed_key), sizeof(struct roost_managed));
    host_map_hash(&attach_ports, 8, sizeof(__be16), sizeof(__u8));
    host_map_hash(&datagrams, 4, sizeof(struct datagram), sizeof(__u8));
}

static const struct roost_ka *slot_of(const struct roost_key *key) {
    return roost_table_find(&world.table, key);
}

static struct roost_key turned(const struct roost_key *key) {
    struct roost_key other = {.client_port = key->local_port, .local_port = key->client_port};
    memcpy(other.client, key->local, 16);
    memcpy(other.local, key->client, 16);
    return other;
}

/* The same frame, going out: addresses and ports change places, which no checksum notices. */
static void turn_round(uint8_t *frame, size_t length) {
    struct tuple t;
    if (!reference_tuple(frame, length, &t))
        return;
    struct roost_key key = turned(&t.key);
    memcpy(frame + t.l3 + (t.v6 ? 8 : 12), key.client + (t.v6 ? 0 : 12), t.v6 ? 16 : 4);
    memcpy(frame + t.l3 + (t.v6 ? 24 : 16), key.local + (t.v6 ? 0 : 12), t.v6 ? 16 : 4);
    memcpy(frame + t.l4, &key.client_port, 2);
    memcpy(frame + t.l4 + 2, &key.local_port, 2);
}

static void guard(uint8_t *frame, size_t length) {
    struct __sk_buff skb;
    struct tuple t;
    size_t after;
    turn_round(frame, length);
    host_begin_skb(&skb, frame, length);
    int verdict = roost_guard(&skb);
    const uint8_t *left = host_frame(&after);
    claim(after == length && !memcmp(left, frame, length), "the guard changed a frame");
    claim(verdict == TC_ACT_OK || verdict == TC_ACT_SHOT, "the guard says %d", verdict);
    claim(verdict == TC_ACT_SHOT || !host.records, "the guard asked about a connection and let the RST go");
    bool plain = reference_tuple(frame, length, &t) && (!t.v6 || t.l4 == t.l3 + 40) &&
                 (t.l3 == 14 || (get16(frame + 12) == 0x8100 && t.l3 == 18));
    if (!plain) /* not what the kernel makes an RST of */
        return;
    struct roost_key key = turned(&t.key);
    const struct roost_ka *slot = slot_of(&key);
    bool rst = frame[t.l4 + 13] & ROOST_RST;
    bool of_a_socket = frame[t.l4 + 13] & ROOST_ACK && get32(frame + t.l4 + 4);
    bool candidate = !slot && !of_a_socket && world_candidate(&world, &key);
    claim((verdict == TC_ACT_SHOT) == (rst && (slot || candidate)), "an RST was %s",
          verdict == TC_ACT_OK ? "let go" : "stopped");
    if (rst && candidate && host.records) {
        const struct roost_frame *asks = host.record[0].data;
        claim(host.record[0].size == sizeof(*asks) && asks->why == ROOST_WHY_CANDIDATE && !asks->length &&
                  !memcmp(&asks->key, &key, sizeof(key)) && asks->ack == get32(frame + t.l4 + 4),
              "the guard asks about another connection");
    }
    claim(host.records == (rst && candidate && !host.ring_full), "the guard says %d words", host.records);
}

static void from_loopback(uint8_t *frame, size_t length, bool marked) {
    struct __sk_buff skb;
    struct tuple t;
    size_t after;
    host_begin_skb(&skb, frame, length);
    skb.mark = MARK | (marked ? ROOST_MARK : 0);
    int verdict = roost_loopback(&skb);
    const uint8_t *left = host_frame(&after);
    claim(after == length && !memcmp(left, frame, length), "loopback changed a frame");
    claim(verdict == TC_ACT_UNSPEC || verdict == TC_ACT_SHOT, "loopback says %d", verdict);
    if (host.assigned) {
        claim(verdict == TC_ACT_UNSPEC && !host.records && marked, "a door got a packet that is not for it");
        return;
    }
    claim(host.records == (verdict == TC_ACT_SHOT && !host.ring_full), "loopback handed %d frames over", host.records);
    bool plain = reference_tuple(frame, length, &t) && t.l3 == 14 && (!t.v6 || t.l4 == t.l3 + 40);
    if (plain) {
        bool opens = (frame[t.l4 + 13] & (ROOST_SYN | ROOST_ACK)) == ROOST_SYN;
        claim((verdict == TC_ACT_SHOT) == (slot_of(&t.key) != NULL), "loopback says %d", verdict);
        claim(!(opens && marked), "a door did not get a packet");
    }
    if (!host.records)
        return;
    const struct roost_frame *f = host.record[0].data;
    claim(host.record[0].size >= sizeof(*f) + f->length && f->why == ROOST_WHY_LOCAL && f->l3 == 14,
          "a record that is shorter than it says");
    claim(f->length == (length > ROOST_FRAME_LARGE ? 0 : length) && !memcmp(f->data, frame, f->length),
          "loopback handed other bytes over");
    claim(slot_of(&f->key) != NULL, "loopback handed over what is for nobody");
}

static void lookup(struct input *in) {
    struct roost_key key = world.key[take(in, 1) % CONNECTIONS];
    uint32_t change = take(in, 1), v4 = roost_key_is_v4(&key);
    if (change & 1)
        key.client[v4 ? 12 + take(in, 1) % 4 : take(in, 1) % 16] ^= (uint8_t)take(in, 1);
    if (change & 2)
        key.local_port ^= (uint16_t)take(in, 2);
    struct bpf_sk_lookup ctx = {.family = v4 ? FAMILY_INET : FAMILY_INET6,
                                .protocol = change & 4 ? IPPROTO_UDP : IPPROTO_TCP,
                                .remote_port = key.client_port,
                                .ingress_ifindex = change & 8 ? 3 : 4,
                                .local_port = get16((const uint8_t *)&key.local_port)};
    if (v4) {
        memcpy(&ctx.remote_ip4, key.client + 12, 4);
        memcpy(&ctx.local_ip4, key.local + 12, 4);
    } else {
        memcpy(ctx.remote_ip6, key.client, 16);
        memcpy(ctx.local_ip6, key.local, 16);
    }
    bool ours = !(change & 4) && (slot_of(&key) || (change & 8 && world_candidate(&world, &key)));
    uint64_t hash = world_hash(&world, &key);
    uint32_t now_s = (uint32_t)(host.now_ns / 1000000000);
    sockets.until[hash >> 48] = 0;
    gate.services = take(in, 1) % 3;
    claim(roost_lookup(&ctx) == (ours ? SK_DROP : SK_PASS), "a listener %s a packet", ours ? "gets" : "misses");
    claim(roost_may_have_socket(&sockets, hash, now_s) == (!ours && !(change & 4) && gate.services),
          "who may get a socket was %snoted", sockets.until[hash >> 48] ? "" : "not ");
}

static void local_connect(struct input *in) {
    struct roost_key key = world.key[take(in, 1) % CONNECTIONS];
    uint32_t how = take(in, 1), more = take(in, 1);
    bool v4 = roost_key_is_v4(&key), by_v6 = !v4 || how & 1, bound = how & 2, udp = how & 4, elsewhere = how & 8;
    bool addressed = how & 32, daemons = more & 4, on_interface = more & 8, marked = more & 16, finds = more & 32;
    struct roost_managed_key near = {.port = key.local_port};
    uint8_t yes = 1;
    memcpy(near.address, key.local, 16);
    host_map_hash(&near_ends, 2, sizeof(near), sizeof(yes));
    bpf_map_update_elem(&near_ends, &near, &yes, 0);
    if (how & 16)
        key.client_port ^= (uint16_t)take(in, 2);
    struct bpf_sock sk = {.src_port = bound ? 80 : 0,
                          .src_ip4 = addressed,
                          .bound_dev_if = on_interface ? 3 : 0,
                          .mark = MARK | (marked ? ROOST_MARK : 0)};
    struct bpf_sock_addr ctx = {.user_port = key.client_port,
                                .family = by_v6 ? FAMILY_INET6 : FAMILY_INET,
                                .protocol = udp ? IPPROTO_UDP : IPPROTO_TCP,
                                .sk = &sk};
    if (by_v6)
        memcpy(ctx.user_ip6, key.client, 16);
    else
        memcpy(&ctx.user_ip4, key.client + 12, 4);
    host_begin();
    host.netns = elsewhere ? 8 : 7;
    host.no_bind = how & 64;
    host.sockets = more & 3;
    host.process = 12;
    host.cookie_of_socket = daemons && finds ? 99 : 98; /* 99: it finds itself by this very call */
    daemon = (struct roost_own){.netns = 7, .cookie = 99, .process = !daemons ? 13 : finds ? 0 : 12};
    bool there = slot_of(&key) || host.sockets == HOST_CONNECTION;
    bool asked = !elsewhere && !daemons && !udp && !bound && !on_interface, ours = asked && there;
    claim((by_v6 ? roost_connect6(&ctx) : roost_connect4(&ctx)) == 1, "a connect() was refused");
    claim(daemon.process == (!daemons ? 13u : finds && elsewhere ? 0u : 12u), "another process passes for the daemon");
    if (ours) {
        claim(host.bound == (!addressed && !host.no_bind), "a socket was bound, or was not");
        claim(host.mark == (host.bound || addressed ? (MARK & ~ROOST_MARK_MASK) | ROOST_MARK : 0), "the mark became %x",
              host.mark);
    } else { /* what an earlier call gave it is taken back */
        claim(host.bound == (asked && marked && !host.no_bind), "a socket was bound, or was not");
        claim(host.mark == (asked && marked ? MARK : 0), "the mark became %x", host.mark);
    }
}

static const struct roost_managed *manager_of(const struct tuple *t) {
    struct roost_managed_key key = {.port = t->key.local_port};
    memcpy(key.address, t->key.local, 16);
    const struct roost_managed *found = bpf_map_lookup_elem(&managed, &key);
    if (found)
        return found;
    memset(key.address, 0, 16);
    key.address[10] = key.address[11] = t->v6 ? 0 : 0xff;
    return bpf_map_lookup_elem(&managed, &key);
}

static void claim_refusal(const uint8_t *refusal, size_t length, const uint8_t *frame, const struct tuple *t) {
    struct tuple a;
    const uint8_t *tcp = frame + t->l4;
    claim(reference_tuple(refusal, length, &a) && a.l4 == 34 && a.l4_length == 20 && !a.v6,
          "a refusal that is no TCP segment");
    struct roost_key key = turned(&t->key);
    claim(!memcmp(&a.key, &key, sizeof(key)), "a refusal to somebody else");
    claim(!memcmp(refusal, frame + 6, 6) && !memcmp(refusal + 6, frame, 6), "a refusal to another station");
    bool summed = !reference_tcp_sum(refusal + 26, 8, refusal + 34, 20);
    claim(!reference_sum(refusal + 14, 20, NULL, 0) &&
              (summed || reference_tcp_good(refusal + 26, 8, refusal + 34, 20)),
          "a refusal with bad checksums");
    claim(summed || (get16(tcp + 16) + reference_part_sum(frame + 26, 8, tcp, t->l4_length, 0) == 0xffff),
          "a refusal without a whole checksum, of a frame that had one");
    claim(refusal[47] & ROOST_RST, "a refusal without RST");
    if (tcp[13] & ROOST_ACK)
        claim(get32(refusal + 38) == get32(tcp + 8), "a refusal out of the window");
    else
        claim(refusal[47] & ROOST_ACK && get32(refusal + 42) == get32(tcp + 4) + (tcp[13] & ROOST_SYN ? 1 : 0),
              "a refusal that acknowledges something else");
}

static void steered(struct input *in, const uint8_t *frame, size_t length, bool servers) {
    struct __sk_buff skb;
    struct tuple t;
    size_t after;
    host.sockets = take(in, 1);
    host.cookie = take(in, 1) & 1;
    host_begin_skb(&skb, frame, length);
    skb.mark = MARK;
    int verdict = servers ? roost_steer_servers(&skb) : roost_steer_clients(&skb);
    const uint8_t *left = host_frame(&after);
    bool marked = (skb.mark & ROOST_MARK_MASK) == ROOST_MARK;
    claim(skb.mark == MARK || skb.mark == ((MARK & ~ROOST_MARK_MASK) | ROOST_MARK), "the mark became %x", skb.mark);
    claim(!host.records, "steering handed a frame over");
    claim(verdict == TC_ACT_UNSPEC || (!servers && (verdict == TC_ACT_SHOT || verdict == TC_ACT_REDIRECT)),
          "steering says %d", verdict);
    if (verdict != TC_ACT_REDIRECT && !(verdict == TC_ACT_SHOT && host.no_tail_room))
        claim(after == length && !memcmp(left, frame, length), "steering changed a frame that it did not answer");
    if (!reference_tuple(frame, length, &t) || t.l3 != 14) {
        claim(verdict == TC_ACT_UNSPEC || !t.v6, "steering says %d", verdict);
        return;
    }

    uint8_t flags = frame[t.l4 + 13];
    bool opens = (flags & (ROOST_SYN | ROOST_ACK)) == ROOST_SYN;
    uint32_t socket = host.sockets & 3;
    if (socket == HOST_LISTENER && (flags & (ROOST_SYN | ROOST_ACK | ROOST_RST)) == ROOST_ACK && host.cookie)
        socket = HOST_CONNECTION;
    const struct roost_managed *server = servers ? NULL : manager_of(&t);
    const struct roost_ka *slot = slot_of(&t.key);
    bool asleep = slot && !!(ROOST_FLAGS(slot->ctl) & ROOST_F_SERVER) == servers && (server || servers);
    if (socket == HOST_CONNECTION || asleep) {
        claim(marked && verdict == TC_ACT_UNSPEC, "a packet of ours was not marked");
    } else if (server && socket == HOST_LISTENER && (opens || server->fail_closed)) {
        claim(marked && verdict == TC_ACT_UNSPEC, "a new client's packet was not marked");
    } else if (server && server->fail_closed && t.v6) {
        claim(marked && verdict == TC_ACT_UNSPEC, "the stack was not let refuse a client");
    } else if (server && server->fail_closed) {
        claim(!marked && verdict != TC_ACT_UNSPEC, "a client got through to a server that is closed");
        claim(verdict == TC_ACT_SHOT || !(flags & ROOST_RST), "an RST was answered");
        if (verdict == TC_ACT_REDIRECT)
            claim_refusal(left, after, frame, &t);
        else
            claim(flags & ROOST_RST || host.no_tail_room, "a client was not told that it is refused");
    } else if (servers) {
        claim(marked == host.assigned, "a server's packet was marked, and no door has it");
        claim(!(flags & ROOST_RST) || !marked, "an RST was given to the door");
    } else {
        claim(!marked && verdict == TC_ACT_UNSPEC, "a stranger's packet was not left alone");
    }
}

static void manage(struct input *in) {
    const struct roost_key *key = &world.key[take(in, 1) % CONNECTIONS];
    uint32_t how = take(in, 1);
    struct roost_managed_key server = {.port = key->local_port};
    struct roost_managed value = {.fail_closed = !!(how & 1)};
    __u8 one = 1;
    memcpy(server.address, key->local, 16);
    if (how & 2)
        memset(server.address + (how & 4 ? 0 : 12), 0, how & 4 ? 16 : 4);
    if (how & 8)
        bpf_map_update_elem(&attach_ports, &key->client_port, &one, 0);
    else
        bpf_map_update_elem(&managed, &server, &value, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t frame[HOST_SKB_MAX];
    struct input in = {data, data + size};
    world_fill(&world, take(&in, 1) & 1);
    give_maps();
    host.ring_full = host.no_tail_room = false;
    host.fib_result = BPF_FIB_LKUP_RET_SUCCESS;
    while (in.at < in.end) {
        uint32_t what = take(&in, 1) % DOES;
        size_t length = 0;
        int i;
        if (what == DO_GUARD || what == DO_LOOPBACK || what == DO_STEER_CLIENTS || what == DO_STEER_SERVERS)
            length = world_frame(&world, &in, frame);
        switch (what) {
        case DO_GUARD:
            guard(frame, length);
            break;
        case DO_LOOPBACK:
            i = (int)take(&in, 1);
            if (i == 255) { /* what TCP hands over at once there */
                size_t longer = length + take(&in, 2);
                memset(frame + length, 0, longer - length);
                length = longer;
            }
            from_loopback(frame, length, i & 1);
            break;
        case DO_LOOKUP:
            lookup(&in);
            break;
        case DO_STEER_CLIENTS:
        case DO_STEER_SERVERS:
            steered(&in, frame, length, what == DO_STEER_SERVERS);
            break;
        case DO_PHASE:
            i = (int)(take(&in, 1) % CONNECTIONS);
            world_insert(&world, i, ROOST_FREEZING + take(&in, 1) % ROOST_THAWED);
            break;
        case DO_REMOVE:
            world_remove(&world, (int)(take(&in, 1) % CONNECTIONS));
            break;
        case DO_TROUBLE:
            i = (int)take(&in, 1);
            host.ring_full = i & 1;
            host.no_tail_room = i & 2;
            host.fib_result = i & 4 ? BPF_FIB_LKUP_RET_NOT_FWDED : BPF_FIB_LKUP_RET_SUCCESS;
            host_map_sockets(&doors, !(i & 8));
            break;
        case DO_MANAGE:
            manage(&in);
            break;
        case DO_CONNECT:
            local_connect(&in);
            break;
        case DO_FILTER:
            world_filter(&world, &in);
            break;
        }
    }
    host_forget_records();
    return 0;
}
