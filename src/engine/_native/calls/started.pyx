# cython: language_level=3, auto_pickle=False
"""`Started`: a future of the event loop that is also a coroutine.

A coroutine can be given to create_task(), a TaskGroup and run_coroutine_threadsafe(), a future can not; a future is
taken by gather(), wait() and ensure_future() as it is, a coroutine gets a task of its own there. A Started is taken by
all of them. Tasks that await it wait for the plain future inside, which is their fastest way.
"""
cimport cython


@cython.final
@cython.freelist(64)
cdef class Started:
    """What a call returns that has started: await it, once or several times, or leave it.

    It has the methods of the asyncio.Future that it is made of, and those of a coroutine. A failure that is never
    retrieved is reported by the event loop when the future is collected.
    """

    def __cinit__(self, future not None):
        self.future = future

    # A coroutine -------------------------------------------------------------------------------------------------

    def __await__(self):
        return iter(self.future)

    def send(self, value):
        """One step, as of a coroutine."""
        if self.steps is None:
            self.steps = iter(self.future)
        return self.steps.send(value)

    def throw(self, *error):
        """Raise it where the coroutine waits, which ends it; the work goes on."""
        if self.steps is None:
            self.steps = iter(self.future)
        return self.steps.throw(*error)

    def close(self):
        """Wait no more; the work goes on."""
        self.steps = None

    # A future ----------------------------------------------------------------------------------------------------

    @property
    def _asyncio_future_blocking(self):
        return self.future._asyncio_future_blocking

    # What gather() and wait() ask of each; the rest by name.
    def get_loop(self):
        """Its event loop."""
        return self.future.get_loop()

    def done(self):
        """Whether it has ended."""
        return self.future.done()

    def cancelled(self):
        """Whether it was cancelled."""
        return self.future.cancelled()

    def result(self):
        """What awaiting it gives; raises what awaiting it raises."""
        return self.future.result()

    def exception(self):
        """What awaiting it raises, None for a result."""
        return self.future.exception()

    def __getattr__(self, name):
        return getattr(self.future, name)

    def add_done_callback(self, fn, *, context=None):
        """Have fn(this) called by the loop when it has ended."""
        self.future.add_done_callback(Callback.__new__(Callback, fn, self), context=context)

    def remove_done_callback(self, fn):
        """Undo add_done_callback(); how often it was added."""
        return self.future.remove_done_callback(Callback.__new__(Callback, fn, self))

    def __repr__(self):
        return f"<Started {self.future!r}>"


@cython.final
cdef class Callback:
    """Calls a function with the Started instead of the future inside. Equal for the same function of the same."""

    def __cinit__(self, function, Started owner):
        self.function = function
        self.owner = owner

    def __call__(self, future):
        self.function(self.owner)

    def __eq__(self, other):
        return (
            isinstance(other, Callback)
            and (<Callback> other).owner is self.owner
            and (<Callback> other).function == self.function
        )

    def __hash__(self):
        return hash(self.function)
