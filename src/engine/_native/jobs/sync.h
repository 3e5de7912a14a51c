/* The sync of a file's data, and of its size: fdatasync() on Linux.
 *
 * On macOS fsync() returns when the drive has the data in its cache. F_FULLFSYNC waits for the medium; file systems
 * that do not know it, such as those of other machines, have their fsync().
 */
#ifndef ENGINE_SYNC_H
#define ENGINE_SYNC_H

#include <unistd.h>

#ifdef __APPLE__
#include <errno.h>
#include <fcntl.h>

static inline int engine_fdatasync(int fd) {
    int done = fcntl(fd, F_FULLFSYNC);
    if (done < 0 && (errno == ENOTSUP || errno == EINVAL || errno == ENOTTY))
        done = fsync(fd);
    return done < 0 ? -1 : 0;
}
#else
static inline int engine_fdatasync(int fd) { return fdatasync(fd); }
#endif

#endif
