# cython: language_level=3, auto_pickle=False
"""Threads that do blocking work without the interpreter lock.

A Python thread that writes and syncs must get the interpreter lock back after each call, from a loop that is busy; that
wait is often as long as the sync. These threads never touch a Python object, so they never wait for the lock. Each kind
of Job fills a C struct for them while it is constructed: filejob for files, commitjob for commits of a database.

    loop                            mutex                             threads
    submit(job)  ---- Task ---->  [ first ... last ]  --------------> run(task)
    take()       <--- Tasks ----  [ done ]  <-------------------------+
       ^                             +---- 1 byte to wake_fd, if `done` was empty
       +---- the loop reads wake_fd --+

1. submit() takes a reference to the Job, which keeps it and its buffers alive, appends its Task to the waiting queue
   and signals one thread. A new thread is started only where as many tasks wait as threads are idle, up to
   `threads_max`.
2. A thread removes the first Task, runs it without the mutex, and puts it on `done`. Only the first one there writes a
   byte to `wake_fd`: one wake-up serves all jobs that end until the loop comes, and as take() empties `done` before the
   next byte can be written, the descriptor's buffer never fills and the write never blocks.
3. The loop, woken by the byte, calls deliver(), which calls take(): it removes the whole list under the mutex, releases
   the buffers, and returns the Jobs, oldest first; check() of each raises what its work failed with, and its
   `done` is called with that.
4. close() lets the threads run what waits, joins them, and takes the last jobs. After a fork there are no threads to
   join, and their mutex may be locked for ever: the child only forgets it.

All signals are blocked in these threads, so that signals reach the threads of Python.
"""
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport calloc, free
from posix.signal cimport SIG_BLOCK, SIG_SETMASK, sigfillset, sigset_t
from posix.unistd cimport getpid, pid_t, read, write

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
    THREADS_MAX = 64


cdef class Job:
    """One piece of work; a base class. Its buffers are held, and must not change, from construction until it was run,
    here or by JobThreads.
    """

    def run(self):
        """Run the job on this thread, without the interpreter lock, and release its buffers."""
        with nogil:
            self.task.run(self.task)
        self.release()

    def check(self):
        """Raise the error that the job ended with, if any. Each kind of job defines which."""

    def __call__(self):
        """run() and check(), where there are no JobThreads."""
        self.run()
        self.check()

    cdef void release(self):
        pass

    cdef bint failed(self):
        return True

    cdef int tell(self) except -1:
        done, self.done = self.done, None
        error = None
        if self.failed():
            try:
                self.check()
            except BaseException as e:
                error = e
        done(None, error)
        return 0


cpdef int tell_all(object jobs) except -1:
    """Tell how each of an iterator of jobs ended, as submit() was asked to. Raises what one of those told has raised,
    behind the others: they are of other segments, and would wait for ever.
    """
    cdef Job job
    try:
        for job in jobs:
            job.tell()
    except BaseException:
        tell_all(jobs)  # the rest of the iterator
        raise
    return 0


cdef struct Shared:
    pthread_mutex_t mutex                        # guards the rest
    pthread_cond_t posted
    Task* first                                  # waiting, in the order of submission
    Task* last
    Task* done                                   # newest first
    int waiting
    int idle
    bint stopping
    int wake_fd
    pid_t process                                # that has the threads; a fork has none of them
    int threads
    pthread_t[THREADS_MAX] ids


cdef void* _work(void* argument) noexcept nogil:
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
        task.run(task)
        pthread_mutex_lock(&shared.mutex)
        task.next = shared.done
        shared.done = task
        if task.next == NULL:
            write(shared.wake_fd, b"", 1)        # at most one byte until the next take(): never blocks
    pthread_mutex_unlock(&shared.mutex)
    return NULL


cdef class JobThreads:
    """Runs Jobs on up to `threads_max` threads, each started when there is work for one more.

    A job under way has a reference that Python's collector of cycles does not know of: a thread uses its memory, and by
    what it tells it may be part of a cycle, with these threads in it.

    A byte is written to `wake_fd` when take() has jobs again. All methods must be called on one thread.
    """

    def __cinit__(self, int wake_fd, int threads_max):
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

    def submit(self, Job job not None, done=None):
        """Queue a job; its buffers must not change until take() returns it. OSError if no thread can be started.

        `done(None, its error or None)` is called by deliver(), or by tell_all().
        """
        cdef Shared* shared = self.shared
        cdef Task* task = job.task
        cdef bint more
        if shared == NULL:
            raise RuntimeError("submit() must not be called after close()")
        pthread_mutex_lock(&shared.mutex)
        more = shared.waiting >= shared.idle and shared.threads < self.threads_max
        pthread_mutex_unlock(&shared.mutex)
        if more:
            self._start_one()
        job.done = done
        Py_INCREF(job)
        task.job = <PyObject*> job
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
            raise OSError(error, "no thread could be started")
        return 0

    def take(self):
        """The jobs that have ended since the last call, in the order of ending."""
        cdef Shared* shared = self.shared
        cdef Task* task
        cdef list found = []
        cdef Job job
        if shared == NULL:
            return found
        pthread_mutex_lock(&shared.mutex)
        task = shared.done
        shared.done = NULL
        pthread_mutex_unlock(&shared.mutex)
        while task != NULL:
            job = <Job> task.job
            Py_DECREF(job)
            task = task.next
            job.release()
            found.append(job)
        found.reverse()
        return found

    def deliver(self, int woken):
        """Read the wake-up from that descriptor, and tell how the jobs that have ended did."""
        cdef char[64] bytes_read
        read(woken, bytes_read, sizeof(bytes_read))
        tell_all(iter(self.take()))

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
