// SPDX-License-Identifier: Apache-2.0
/*
 * Rows of history as SQLite reads them, without the interpreter: a table-valued function of SQLite (its documentation, "The
 * Virtual Table Mechanism") that takes packed rows (struct roost_row, one after the other) apart.
 *
 *     INSERT INTO history_1 SELECT 1 + rowid, * FROM roost_history(?)
 *
 * Rows are numbered from 0; columns are those of a part of the history (control/store/schema.py) behind the row's number. Loaded
 * by sqlite3_roost_init into the connection that writes.
 */
#include <arpa/inet.h>
#include <sqlite3ext.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cext/base/types.h"

SQLITE_EXTENSION_INIT1

#define TEXT_ROOM 64 /* of "[address]:port" */

enum {
    ID,
    AT,
    CLIENT,
    SERVICE,
    FROM,
    TO,
    CAUSE,
    RX,
    TX,
    GAP,
    SERVER,
    ERROR,
    PROBES,
    SILENCE,
    PACKED
};

#define COLUMNS                                                                                                        \
    "CREATE TABLE rows(id, at, client, service, \"from\", \"to\", cause, rx_bytes, tx_bytes, gap_ms, server, error, "  \
    "probes, silence_s, packed HIDDEN)"

struct cursor {
    sqlite3_vtab_cursor base;
    sqlite3_value *packed; /* owns what `rows` points to */
    const struct roost_row *rows;
    sqlite3_int64 count;
    sqlite3_int64 at;
};

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}; /* RFC 4291 2.5.5.2 */

static char *put_number(char *to, unsigned int number) {
    char digits[10];
    size_t count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

/* As address_text of control/store/schema.py. snprintf takes five times as long for the addresses that nearly all have. */
static size_t address_text(char text[TEXT_ROOM], const uint8_t address[16], uint16_t port) {
    char *end = text;
    if (!memcmp(address, mapped, sizeof(mapped))) {
        for (int i = 12; i < 16; i++) {
            end = put_number(end, address[i]);
            *end++ = i < 15 ? '.' : ':';
        }
        return (size_t)(put_number(end, port) - text);
    }
    char inner[INET6_ADDRSTRLEN];
    static const uint8_t zeros[12];
    const uint16_t high = (uint16_t)(address[12] << 8 | address[13]), low = (uint16_t)(address[14] << 8 | address[15]);
    if (!memcmp(address, zeros, sizeof(zeros)) &&
        high) /* inet_ntop would write the last four bytes as an IPv4 address */
        snprintf(inner, sizeof(inner), "::%x:%x", high, low);
    else
        inet_ntop(AF_INET6, address, inner, sizeof(inner));
    return (size_t)snprintf(text, TEXT_ROOM, "[%s]:%u", inner, port);
}

static int connect_table(sqlite3 *db, void *unused, int count, const char *const *words, sqlite3_vtab **table,
                         char **error) {
    const int result = sqlite3_declare_vtab(db, COLUMNS);
    if (result != SQLITE_OK)
        return result;
    *table = sqlite3_malloc(sizeof(**table));
    if (!*table)
        return SQLITE_NOMEM;
    memset(*table, 0, sizeof(**table));
    return SQLITE_OK;
}

static int disconnect_table(sqlite3_vtab *table) {
    sqlite3_free(table);
    return SQLITE_OK;
}

static int best_index(sqlite3_vtab *table, sqlite3_index_info *info) {
    for (int i = 0; i < info->nConstraint; i++)
        if (info->aConstraint[i].iColumn == PACKED && info->aConstraint[i].usable &&
            info->aConstraint[i].op == SQLITE_INDEX_CONSTRAINT_EQ) {
            info->aConstraintUsage[i].argvIndex = 1;
            info->aConstraintUsage[i].omit = 1;
            return SQLITE_OK;
        }
    return SQLITE_CONSTRAINT; /* there are no rows without an argument */
}

static int open_cursor(sqlite3_vtab *table, sqlite3_vtab_cursor **cursor) {
    struct cursor *c = sqlite3_malloc(sizeof(*c));
    if (!c)
        return SQLITE_NOMEM;
    memset(c, 0, sizeof(*c));
    *cursor = &c->base;
    return SQLITE_OK;
}

static int close_cursor(sqlite3_vtab_cursor *cursor) {
    struct cursor *c = (struct cursor *)cursor;
    sqlite3_value_free(c->packed);
    sqlite3_free(c);
    return SQLITE_OK;
}

static int filter(sqlite3_vtab_cursor *cursor, int plan, const char *name, int count, sqlite3_value **values) {
    struct cursor *c = (struct cursor *)cursor;
    const int bytes = sqlite3_value_bytes(values[0]);
    if (sqlite3_value_type(values[0]) != SQLITE_BLOB || bytes % (int)sizeof(struct roost_row)) {
        cursor->pVtab->zErrMsg =
            sqlite3_mprintf("roost_history: %d bytes are no rows of %d", bytes, (int)sizeof(struct roost_row));
        return SQLITE_ERROR;
    }
    sqlite3_value_free(c->packed);
    c->packed = sqlite3_value_dup(values[0]);
    if (!c->packed)
        return SQLITE_NOMEM;
    c->rows = sqlite3_value_blob(c->packed);
    if (bytes && !c->rows)
        return SQLITE_NOMEM;
    c->count = bytes / (int)sizeof(struct roost_row);
    c->at = 0;
    return SQLITE_OK;
}

static int next(sqlite3_vtab_cursor *cursor) {
    ((struct cursor *)cursor)->at++;
    return SQLITE_OK;
}

static int at_end(sqlite3_vtab_cursor *cursor) {
    const struct cursor *c = (const struct cursor *)cursor;
    return c->at >= c->count;
}

static int row_number(sqlite3_vtab_cursor *cursor, sqlite3_int64 *number) {
    *number = ((const struct cursor *)cursor)->at;
    return SQLITE_OK;
}

static void tell_number(sqlite3_context *to, uint64_t number) {
    sqlite3_result_int64(to, (sqlite3_int64)number);
}

static void tell_unless_0(sqlite3_context *to, uint64_t number) {
    if (number)
        tell_number(to, number);
}

static void tell_address(sqlite3_context *to, const uint8_t address[16], uint16_t port) {
    char text[TEXT_ROOM];
    const size_t length = address_text(text, address, port);
    sqlite3_result_text(to, text, (int)length, SQLITE_TRANSIENT);
}

static int column(sqlite3_vtab_cursor *cursor, sqlite3_context *to, int wanted) {
    static const struct roost_ends nowhere;
    const struct cursor *c = (const struct cursor *)cursor;
    struct roost_row row; /* SQLite does not say how a blob lies */
    memcpy(&row, &c->rows[c->at], sizeof(row));
    switch (wanted) {
    case ID:
        tell_number(to, row.id);
        break;
    case AT:
        tell_number(to, row.at_ms);
        break;
    case CLIENT:
        tell_address(to, row.key.client, ntohs(row.key.client_port));
        break;
    case SERVICE:
        tell_number(to, row.service);
        break;
    case FROM:
        tell_number(to, row.from_state);
        break;
    case TO:
        tell_number(to, row.to_state);
        break;
    case CAUSE:
        tell_number(to, row.cause);
        break;
    case RX:
        tell_number(to, row.rx_bytes);
        break;
    case TX:
        tell_number(to, row.tx_bytes);
        break;
    case GAP:
        tell_number(to, row.gap_ms);
        break;
    case SERVER:
        if (memcmp(row.ends.server, nowhere.server, sizeof(nowhere.server)) || row.ends.server_port)
            tell_address(to, row.ends.server, row.ends.server_port);
        break;
    case ERROR:
        tell_unless_0(to, row.ends.error);
        break;
    case PROBES:
        tell_unless_0(to, row.ends.probes);
        break;
    case SILENCE:
        tell_unless_0(to, row.ends.silence_s);
        break;
    default:
        break;
    }
    return SQLITE_OK;
}

static const sqlite3_module module = {
    .xConnect = connect_table, /* without xCreate: there without a table's being made */
    .xBestIndex = best_index,
    .xDisconnect = disconnect_table,
    .xOpen = open_cursor,
    .xClose = close_cursor,
    .xFilter = filter,
    .xNext = next,
    .xEof = at_end,
    .xColumn = column,
    .xRowid = row_number,
};

/* What SQLite calls when this is loaded. */
int sqlite3_roost_init(sqlite3 *db, char **error, const sqlite3_api_routines *api);

int sqlite3_roost_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    SQLITE_EXTENSION_INIT2(api);
    return sqlite3_create_module(db, "roost_history", &module, NULL);
}
