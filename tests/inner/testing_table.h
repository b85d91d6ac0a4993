/* SPDX-License-Identifier: Apache-2.0 */
/* A table in plain memory, for those of the testing files that need one. */
#ifndef ROOST_TESTS_TESTING_TABLE_H
#define ROOST_TESTS_TESTING_TABLE_H

#include "cext/table/table.h"

struct roost_table_handle {
    struct roost_table table;
    struct roost_endpoint *endpoints;
    struct roost_class classes[ROOST_CLASSES];
};

#endif
