/* SPDX-License-Identifier: Apache-2.0 */
/* The only process of a machine: has its kernel load each BPF object in /, says how that ended, and is done. */
#include <bpf/libbpf.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

#define LAST 1500 /* bytes of a message: of the verifier's the end says what it refuses */

static int say(enum libbpf_print_level level, const char *format, va_list values) {
    static char text[1 << 24];
    if (level != LIBBPF_WARN)
        return 0;
    int length = vsnprintf(text, sizeof(text), format, values);
    if (length >= (int)sizeof(text))
        length = sizeof(text) - 1;
    return printf("%s", text + (length > LAST ? length - LAST : 0));
}

int main(void) {
    mount("none", "/sys", "sysfs", 0, NULL); /* its own BTF */
    mount("none", "/dev", "devtmpfs", 0, NULL);
    if (!freopen("/dev/console", "w", stdout))
        return 1;
    printf("\n"); /* behind what the firmware has written */
    libbpf_set_print(say);
    DIR *root = opendir("/");
    for (struct dirent *entry; root && (entry = readdir(root));) {
        if (!strstr(entry->d_name, ".bpf.o"))
            continue;
        struct bpf_object *object = bpf_object__open_file(entry->d_name, NULL);
        int error = object ? bpf_object__load(object) : -1;
        printf("%s: %d\n", entry->d_name, error);
        bpf_object__close(object);
    }
    printf("that is all\n");
    fflush(stdout);
    tcdrain(fileno(stdout));
    return reboot(RB_AUTOBOOT);
}
