# cython: language_level=3
"""Frames as they arrive on a connection of a broker: counted, and handed to the handler of their command. What is sent
there is counted as well.
"""
from engine.errors import EngineError

from engine._native.serve.meters cimport TurnFrames
from libc.stdint cimport uint64_t

FRAMES_PER_NOTE = 16  # received, after which the connection's unsent bytes are counted anew

cdef uint64_t NOTED = FRAMES_PER_NOTE


cdef class Signs:
    """Signs of life of a connection."""


cdef class Arrivals:
    """Loop thread only. Its heir is the connection."""

    def __init__(self, pressure, Signs pulse not None, dict handlers not None, TurnFrames intake not None, outbound):
        """`intake`: of all connections. `outbound`: of all connections; it counts what is sent."""
        self.pressure = pressure
        self.pulse = pulse
        self.handlers = handlers
        self.intake = intake
        self.outbound = outbound

    def frame_received(self, header, payload):
        """Run the handler of the frame's command."""
        cdef Signs pulse = self.pulse
        pulse.frames += 1
        self.intake.frame(self.pressure)
        if pulse.listener is not None:
            pulse.wake()
        if not self.ready:
            self.shake_hands(header)
            return
        handle = self.handlers.get(type(header))
        if handle is None:
            self.unexpected(header)
            return
        try:
            handle(self, header, payload)
        except EngineError as e:
            self.error(getattr(header, "request_id", None) or 0, e)
        except Exception as e:
            self.failed(header, e)
        if pulse.frames % NOTED == 0:
            self.outbound.note(self.pressure)
        if not self.pressure.writable:
            self.pressure.check_answers()

    def send(self, header, payload=b""):
        """Queue one frame; nothing happens when the connection is closed."""
        if not self.closed:
            self.stream.send(header, payload)
            if payload:
                self.outbound.sent(self.pressure, payload)

    @property
    def writable(self):
        """Whether a consumer may send another block."""
        return self.pressure.writable

    @property
    def block_size(self):
        """The most bytes of a block for a consumer; one entry may be larger."""
        return self.outbound.block_size

    # What an heir does

    def shake_hands(self, header):
        """A frame has come before the handshake was done."""
        raise NotImplementedError

    def unexpected(self, header):
        """A frame has come that a broker has no handler for."""
        raise NotImplementedError

    def error(self, request_id, error):
        """Answer a request with an error; 0: the connection ends with it."""
        raise NotImplementedError

    def failed(self, header, error):
        """A handler has failed with what is no EngineError."""
        raise NotImplementedError
