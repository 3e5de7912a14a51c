/* The sync of a file's data, and of its size: fdatasync() on Linux.
 *
 * On macOS fsync() returns when the drive has the data in its cache. F_FULLFSYNC waits for the medium; file systems
 * that do not know it, such as those of other machines, have their fsync().
 */
#ifndef ENGINE_SYNC_H
#define ENGINE_SYNC_H

#include <fcntl.h>
#include <unistd.h>

#ifdef __APPLE__
#include <errno.h>

static inline int engine_fdatasync(int fd) {
    int done = fcntl(fd, F_FULLFSYNC);
    if (done < 0 && (errno == ENOTSUP || errno == EINVAL || errno == ENOTTY))
        done = fsync(fd);
    return done < 0 ? -1 : 0;
}
#else
static inline int engine_fdatasync(int fd) { return fdatasync(fd); }
#endif

/* Drop clean pages of a file from the system's cache; `size` 0: to its end. `writes`: write dirty ones out first. Pages
 * whose write-out failed stay, and descriptors that were open before are told of it by their next sync. macOS has no
 * such calls.
 */
static inline void engine_drop_cached(int fd, off_t start, off_t size, int writes) {
#ifdef __linux__
    if (writes)
        (void) sync_file_range(
            fd, start, size, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
#endif
#ifndef __APPLE__
    (void) posix_fadvise(fd, start, size, POSIX_FADV_DONTNEED);
#endif
}

#endif
