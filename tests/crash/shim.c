/* Counts the durable calls of a process and, at the N-th, kills it or makes the call fail.
 *
 * Loaded with LD_PRELOAD; does nothing until shim_arm() is called. Actions:
 *   1 kill before the call     2 kill after the call      3 write the first half of the bytes, then kill
 *   4 fail with `error` once   5 fail with `error` from then on, until shim_arm(0, ...)
 *   6 write the first half and say so (a short write)     7 the same, then fail with `error` at the next call
 * `kinds` is a mask of the calls that count: 1 writes, 2 syncs, 4 the rest. After shim_in(part), those writes and syncs
 * alone count whose file's path has this part: what a program does beside, at times of its own, takes no failure.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, OTHERS = 4 };

static atomic_int armed, counter, at, action, error_number, mask;

void shim_arm(int n, int what, int error, int kinds) {
    counter = 0;
    at = n;
    action = what;
    error_number = error;
    mask = kinds;
    armed = n > 0;
}

int shim_count(void) { return counter; }

static char within[64];

void shim_in(const char *part) { snprintf(within, sizeof within, "%s", part); }

static int is_within(int fd) {
    if (!within[0]) return 1;
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return strstr(path, within) != NULL;
}

/* The action that this call meets, 0 for none; `fd` is -1 for a call that has only a path. */
static int meets(int kind, int fd) {
    if (!armed || !(kind & mask) || (fd >= 0 && !is_within(fd))) return 0;
    int n = ++counter;
    if (n == at) return action;
    if (action == 5 && n > at) return 5;
    if (action == 7 && n == at + 1) return 4;
    return 0;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define REAL(type, name) static type (*real)(); if (!real) real = (type (*)())dlsym(RTLD_NEXT, name)

#define SIMPLE(kind, fd, call)                               \
    int what = meets(kind, fd);                              \
    if (what == 1 || what == 3) die();                       \
    if (what == 4 || what == 5) { errno = error_number; return -1; } \
    int result = (call);                                     \
    if (what == 2) die();                                    \
    return result

static ssize_t write_half(int fd, const struct iovec *parts, int count, off_t position, ssize_t half) {
    ssize_t done = 0;
    for (int i = 0; i < count && done < half; i++) {
        size_t n = parts[i].iov_len;
        if ((ssize_t)n > half - done) n = half - done;
        static ssize_t (*real)();
        if (!real) real = (ssize_t (*)())dlsym(RTLD_NEXT, "pwrite64");
        real(fd, parts[i].iov_base, n, position + done);
        done += n;
    }
    return done;
}

typedef ssize_t Finish(int, const struct iovec *, int, off_t);

static ssize_t on_write(int fd, const struct iovec *parts, int count, off_t position, Finish *finish) {
    int what = meets(WRITES, fd);
    ssize_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (what == 1) die();
    if (what == 4 || what == 5) { errno = error_number; return -1; }
    if ((what == 3 || what == 6 || what == 7) && size > 1) {
        ssize_t done = write_half(fd, parts, count, position, size / 2);
        if (what == 3) die();
        return done;
    }
    ssize_t result = finish(fd, parts, count, position);
    if (what == 2 || what == 3) die();
    return result;
}

static ssize_t finish_pwritev(int fd, const struct iovec *parts, int count, off_t position) {
    REAL(ssize_t, "pwritev64");
    return real(fd, parts, count, position);
}

static ssize_t finish_pwrite(int fd, const struct iovec *parts, int count, off_t position) {
    (void)count;
    REAL(ssize_t, "pwrite64");
    return real(fd, parts[0].iov_base, parts[0].iov_len, position);
}

static ssize_t shim_pwrite(int fd, const void *data, size_t n, off_t position) {
    struct iovec part = {(void *)data, n};
    return on_write(fd, &part, 1, position, finish_pwrite);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t position) { return shim_pwrite(fd, data, n, position); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t position) { return shim_pwrite(fd, data, n, position); }
ssize_t pwritev(int fd, const struct iovec *p, int n, off_t at_) { return on_write(fd, p, n, at_, finish_pwritev); }
ssize_t pwritev64(int fd, const struct iovec *p, int n, off_t at_) { return on_write(fd, p, n, at_, finish_pwritev); }
ssize_t pwritev2(int fd, const struct iovec *p, int n, off_t at_, int flags) {
    (void)flags;
    return on_write(fd, p, n, at_, finish_pwritev);
}
ssize_t pwritev64v2(int fd, const struct iovec *p, int n, off_t at_, int flags) {
    return pwritev2(fd, p, n, at_, flags);
}

/* A killed process leaves what it has written to the kernel: a sync would change nothing of what is found then, and waits
 * for the disk. What a power cut leaves is not for this shim (tests/power). */
int fdatasync(int fd) { SIMPLE(SYNCS, fd, 0); }
int fsync(int fd) { SIMPLE(SYNCS, fd, 0); }
int ftruncate(int fd, off_t size) { REAL(int, "ftruncate"); SIMPLE(OTHERS, fd, real(fd, size)); }
int ftruncate64(int fd, off_t size) { REAL(int, "ftruncate64"); SIMPLE(OTHERS, fd, real(fd, size)); }
int rename(const char *from, const char *to) { REAL(int, "rename"); SIMPLE(OTHERS, -1, real(from, to)); }
int unlink(const char *path) { REAL(int, "unlink"); SIMPLE(OTHERS, -1, real(path)); }
int rmdir(const char *path) { REAL(int, "rmdir"); SIMPLE(OTHERS, -1, real(path)); }
int mkdir(const char *path, mode_t mode) { REAL(int, "mkdir"); SIMPLE(OTHERS, -1, real(path, mode)); }

static int shim_open(const char *path, int flags, mode_t mode) {
    REAL(int, "open64");
    if (!(flags & O_CREAT)) return real(path, flags, mode);
    SIMPLE(OTHERS, -1, real(path, flags, mode));
}

#define OPEN(name)                                   \
    int name(const char *path, int flags, ...) {     \
        va_list rest;                                \
        va_start(rest, flags);                       \
        mode_t mode = va_arg(rest, mode_t);          \
        va_end(rest);                                \
        return shim_open(path, flags, mode);         \
    }
OPEN(open)
OPEN(open64)
