# cython: language_level=3
"""`engine_check`: an invariant that costs too much to be checked always. A build with ENGINE_DEBUG=1 checks it; in any
other build neither the call nor what it is given is there.
"""

cdef extern from *:
    """
    #ifdef ENGINE_DEBUG
      #include <stdio.h>
      #include <stdlib.h>
      #define engine_check(holds, invariant) do { if (!(holds)) { \\
          fprintf(stderr, "%s:%d: broken invariant: %s\\n", __FILE__, __LINE__, (invariant)); abort(); } } while (0)
    #else
      #define engine_check(holds, invariant) ((void) sizeof((holds) ? (invariant) : ""))
    #endif
    """
    # Ends the process, naming the invariant, where it does not hold: memory cannot be relied on any more.
    void engine_check(bint holds, const char* invariant) noexcept nogil
