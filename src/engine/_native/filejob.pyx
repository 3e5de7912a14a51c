# cython: language_level=3, auto_pickle=False
"""Writes and syncs of open files, on threads of their own that never need the interpreter lock.

A Python thread that writes and syncs has to get the lock back after each of the calls, from a loop that is busy: that
wait is often as long as the sync. Which files there are, what is written where, and what an error means is decided by
`storage`; a descriptor is handed in, and stays open until the job is taken back.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from posix.signal cimport SIG_BLOCK, SIG_SETMASK, sigfillset, sigset_t
from posix.types cimport off_t
from posix.uio cimport iovec
from posix.unistd cimport getpid, pid_t, pwrite, write

cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec* parts, int count, off_t position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef extern from "<signal.h>" nogil:
    int pthread_sigmask(int how, const sigset_t* wanted, sigset_t* before)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t* thread, const void* attributes, void* (*run)(void*) noexcept nogil, void* argument)
    int pthread_join(pthread_t thread, void** result)
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_cond_destroy(pthread_cond_t* condition)

cdef enum:
    PARTS_MAX = 1024                             # IOV_MAX
    ZEROS_SIZE = 262144
    THREADS_MAX = 64

ZEROS_MAX = ZEROS_SIZE

cdef uint8_t[ZEROS_SIZE] _ZEROS                  # never written


cdef int _write_all(Task* task) noexcept nogil:
    """Write every part; errno, 0 for none. Changes `parts` where a write was short."""
    cdef iovec* part = task.parts
    cdef iovec* end = task.parts + task.count
    cdef ssize_t done
    while part < end:
        done = pwritev(task.fd, part, <int> min(end - part, PARTS_MAX), task.position)
        if done < 0 and errno == EINTR:
            continue
        if done <= 0:
            return errno if done < 0 else EIO
        task.position += done
        while part < end and <size_t> done >= part.iov_len:
            done -= part.iov_len
            part += 1
        if part < end:
            part.iov_base = <uint8_t*> part.iov_base + done
            part.iov_len -= done
    return 0


cdef void _run(Task* task) noexcept nogil:
    task.write_error = _write_all(task)
    if task.write_error:
        return
    if task.zeros:
        task.padded = pwrite(task.fd, _ZEROS, task.zeros, task.position) == <ssize_t> task.zeros
    if task.syncs and fdatasync(task.fd) < 0:    # never again after an error, EINTR among them
        task.sync_error = errno or EIO


cdef class FileJob:
    """Write `buffers`, none of them empty, from `position` on, then zeros, then sync, unless something failed before.

    An error of the zeros is none. After a failed write any part of it may be in the file.
    """

    def __cinit__(self, int fd, buffers, int64_t position, size_t zeros, bint syncs):
        cdef Py_ssize_t i, count = len(buffers)
        self.task.fd = fd
        self.task.position = position
        self.task.zeros = min(zeros, <size_t> ZEROS_SIZE)
        self.task.syncs = syncs
        self.views = <Py_buffer*> PyMem_Calloc(max(count, 1), sizeof(Py_buffer))
        self.task.parts = <iovec*> PyMem_Calloc(max(count, 1), sizeof(iovec))
        if self.views == NULL or self.task.parts == NULL:
            raise MemoryError
        for i in range(count):
            PyObject_GetBuffer(buffers[i], &self.views[i], PyBUF_SIMPLE)
            self.views_count += 1
            self.task.parts[i].iov_base = self.views[i].buf
            self.task.parts[i].iov_len = self.views[i].len
        self.task.count = count

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.views)
        PyMem_Free(self.task.parts)

    cdef void release(self):
        cdef Py_ssize_t i
        for i in range(self.views_count):
            PyBuffer_Release(&self.views[i])
        self.views_count = 0

    def run(self):
        """Do it on this thread, without the interpreter lock, and return the buffers."""
        with nogil:
            _run(&self.task)
        self.release()

    @property
    def padded(self):
        """Whether the zeros were written."""
        return bool(self.task.padded)

    @property
    def write_error(self):
        """The errno of the write, 0 for none."""
        return self.task.write_error

    @property
    def sync_error(self):
        """The errno of the sync, 0 for none."""
        return self.task.sync_error


cdef struct Shared:
    pthread_mutex_t mutex                        # guards the rest
    pthread_cond_t posted
    Task* first                                  # waiting, in their order
    Task* last
    Task* done                                   # the newest first
    int waiting
    int idle
    bint stopping
    int wake_fd
    pid_t process                                # whose threads they are; a fork has none of them
    int threads
    pthread_t[THREADS_MAX] ids


cdef void* _work(void* argument) noexcept nogil:
    """A thread: run tasks until told to stop and none is left."""
    cdef Shared* shared = <Shared*> argument
    cdef Task* task
    pthread_mutex_lock(&shared.mutex)
    while True:
        while shared.first == NULL and not shared.stopping:
            shared.idle += 1
            pthread_cond_wait(&shared.posted, &shared.mutex)
            shared.idle -= 1
        task = shared.first
        if task == NULL:
            break
        shared.first = task.next
        shared.waiting -= 1
        pthread_mutex_unlock(&shared.mutex)
        _run(task)
        pthread_mutex_lock(&shared.mutex)
        task.next = shared.done
        shared.done = task
        if task.next == NULL:
            write(shared.wake_fd, _ZEROS, 1)     # one byte at a time: it never blocks
    pthread_mutex_unlock(&shared.mutex)
    return NULL


@cython.no_gc_clear                              # what threads are working on lives until __dealloc__ has stopped them
cdef class FileThreads:
    """Runs FileJobs; threads are started when there is work for one more, at most `threads_max`.

    A byte is written to `wake_fd` when there is something to take() again. All methods on one thread.
    """

    def __cinit__(self, int wake_fd, int threads_max):
        self.jobs = {}
        self.threads_max = max(1, min(threads_max, THREADS_MAX))
        self.shared = <Shared*> calloc(1, sizeof(Shared))
        if self.shared == NULL:
            raise MemoryError
        pthread_mutex_init(&self.shared.mutex, NULL)
        pthread_cond_init(&self.shared.posted, NULL)
        self.shared.wake_fd = wake_fd
        self.shared.process = getpid()

    def __dealloc__(self):
        self.close()

    def submit(self, FileJob job not None):
        """Hand a job to a thread; its buffers must not change until it is taken back. OSError: there is no thread."""
        cdef Shared* shared = self.shared
        cdef Task* task = &job.task
        cdef bint more
        if shared == NULL:
            raise RuntimeError("the threads were stopped")
        pthread_mutex_lock(&shared.mutex)
        more = shared.waiting >= shared.idle and shared.threads < self.threads_max
        pthread_mutex_unlock(&shared.mutex)
        if more:
            self._start_one()
        self.jobs[<size_t> task] = job
        task.next = NULL
        pthread_mutex_lock(&shared.mutex)
        if shared.first == NULL:
            shared.first = task
        else:
            shared.last.next = task
        shared.last = task
        shared.waiting += 1
        pthread_mutex_unlock(&shared.mutex)
        pthread_cond_signal(&shared.posted)

    cdef int _start_one(self) except -1:
        cdef Shared* shared = self.shared
        cdef sigset_t all_signals, before
        cdef int error
        sigfillset(&all_signals)
        pthread_sigmask(SIG_BLOCK, &all_signals, &before)
        error = pthread_create(&shared.ids[shared.threads], NULL, _work, shared)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error == 0:
            shared.threads += 1
        elif shared.threads == 0:
            raise OSError(error, "no thread could be started to write on")
        return 0

    def take(self):
        """The jobs that have ended since the last call, in the order in which they did."""
        cdef Shared* shared = self.shared
        cdef Task* task
        cdef list found = []
        cdef FileJob job
        if shared == NULL:
            return found
        pthread_mutex_lock(&shared.mutex)
        task = shared.done
        shared.done = NULL
        pthread_mutex_unlock(&shared.mutex)
        while task != NULL:
            job = self.jobs.pop(<size_t> task)
            task = task.next
            job.release()
            found.append(job)
        found.reverse()
        return found

    def close(self):
        """Run what was submitted, stop the threads, take() the last jobs. Idempotent; nothing after a fork."""
        cdef Shared* shared = self.shared
        cdef int i
        if shared == NULL:
            return []
        if shared.process != getpid():
            self.shared = NULL
            return []
        pthread_mutex_lock(&shared.mutex)
        shared.stopping = True
        pthread_mutex_unlock(&shared.mutex)
        pthread_cond_broadcast(&shared.posted)
        with nogil:
            for i in range(shared.threads):
                pthread_join(shared.ids[i], NULL)
        found = self.take()
        self.shared = NULL
        pthread_cond_destroy(&shared.posted)
        pthread_mutex_destroy(&shared.mutex)
        free(shared)
        return found
