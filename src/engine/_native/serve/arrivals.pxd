# cython: language_level=3
"""Frames as they arrive on a connection of a broker."""
from engine._native.serve.meters cimport TurnFrames
from libc.stdint cimport uint64_t

# Signs of life of a connection.
cdef class Signs:
    cdef public uint64_t frames           # received
    cdef public object listener           # woken at the next frame; None: nothing waits for one

# What each frame of a connection goes through.
cdef class Arrivals:
    cdef readonly object pressure
    cdef readonly Signs pulse
    cdef public dict handlers             # by the type of the header: handler(connection, header, payload)
    cdef public bint ready                # the handshake is done
    cdef TurnFrames intake
    cdef object outbound
    cdef public object stream             # of the connection
    cdef public bint closed
