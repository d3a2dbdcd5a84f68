// A connector in C: it keeps notes with a program that Kennel spawns. Only stdio of the C library, and Kennel's functions.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KENNEL(name) __attribute__((import_module("aileron_host"), import_name(name)))

KENNEL("log") void host_log(const char *level, int level_length, const char *message, int length);
KENNEL("spawn_op") int32_t spawn_op(const char *name, int name_length, const char *arguments, int length);
KENNEL("spawn_status") int32_t spawn_status(void);
KENNEL("spawn_output_size") int32_t spawn_output_size(int32_t which);
KENNEL("spawn_output_read") int32_t spawn_output_read(int32_t which, char *to, int length);

static char input[4096];

static int is_operation(const char *name) {
    char start[64];
    int length = snprintf(start, sizeof start, "{\"op\":\"%s\"", name);
    return strncmp(input, start, length) == 0;
}

// Prints a JSON string.
static void print_string(const char *text, int length) {
    putchar('"');
    for (int i = 0; i < length; i++) {
        unsigned char byte = text[i];
        if (byte < 32 || byte == '"' || byte == '\\') {
            printf("\\u%04x", byte);
        } else {
            putchar(byte);
        }
    }
    putchar('"');
}

// Runs the operation `note_list` of the manifest, and prints what it wrote.
static int list(void) {
    const char *name = "note_list", *arguments = "{\"format\": \"%s\"}";
    if (spawn_op(name, strlen(name), arguments, strlen(arguments)) != 0) {
        fprintf(stderr, "note_list did not run\n");
        return 1;
    }
    // In pieces, as a program with little memory does it.
    int size = spawn_output_size(0), length = 0, read;
    char *text = malloc(size + 1);
    while ((read = spawn_output_read(0, text + length, 7)) > 0) {
        length += read;
    }
    host_log("info", 4, "listed", 6);
    printf("{\"output\": {\"status\": %d, \"notes\": ", spawn_status());
    print_string(text, length);
    printf("}}\n");
    free(text);
    return length == size ? 0 : 4;
}

// Takes memory until there is none.
static int hoard(void) {
    for (;;) {
        volatile char *more = malloc(1 << 20);
        if (more == NULL) {
            fprintf(stderr, "out of memory\n");
            abort();
        }
        for (int i = 0; i < 1 << 20; i += 4096) {
            more[i] = 1;
        }
    }
}

int main(int argc, char **argv) {
    size_t length = fread(input, 1, sizeof input - 1, stdin);
    input[length] = 0;
    if (argc > 1 || getenv("HOME") != NULL || fopen("/etc/passwd", "r") != NULL) {
        return 5;
    }
    if (is_operation("list")) {
        return list();
    }
    if (is_operation("hoard")) {
        return hoard();
    }
    fprintf(stderr, "unknown operation\n");
    return 2;
}
