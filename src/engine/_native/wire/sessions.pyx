# cython: language_level=3
"""Frames that a client's connection receives, handed to the sessions that they are for.

    FrameReader ──> Sessions, by the id that the header names ──> SessionEnd ──> its session: a sender, an attachment
                       └──> other_received(): answers to requests, and what is for the connection itself

A frame of receipts may name several producers: each gets its own, in the order of the frame.
"""
from engine.errors import InvalidArgumentError, ProtocolError

cdef object NOTHING = memoryview(b"")


cdef class Sessions:
    """Loop thread only."""

    def __init__(self, dict addressed not None):
        """`addressed`: by the type of a header that is for one session, (field with its id, field with a list of
        further headers, each for another session, or None).
        """
        self.addressed = addressed
        self.attached = {}
        self.heard = True

    def frame_received(self, header, payload):
        """One whole, checked frame. One that its receiver calls malformed is the last."""
        self.heard = True
        if self.fault is not None:
            return  # these frames were under way
        fields = self.addressed.get(type(header))
        try:
            if fields is None:
                self.other_received(header, payload)
            else:
                self.hand_on(header, payload, fields)
        except ProtocolError as e:
            self.fail(e)
        except InvalidArgumentError as e:  # raised by a parser of one of its parts
            self.fail(ProtocolError(f"{header.command.name} is malformed: {e}"))

    def other_received(self, header, payload):
        """A frame that is not for one session alone; for heirs."""

    def fail(self, error):
        """The peer broke the protocol; for heirs."""

    cdef int hand_on(self, header, payload, tuple fields) except -1:
        one = self.attached.get(getattr(header, <str>fields[0]))
        if one is not None:
            one.frame_received(header, payload)
        if fields[1] is not None:
            further = getattr(header, <str>fields[1])
            if further is not None:
                for part in further:
                    one = self.attached.get(getattr(part, <str>fields[0]))
                    if one is not None:
                        one.frame_received(part, NOTHING)
        return 0


cdef class SessionEnd:
    """Loop thread only."""

    def __init__(self, session, ended_by):
        """`session` gets every frame but that of the type `ended_by`, unless this answers a request."""
        self.session = session
        self.ended_by = ended_by

    def frame_received(self, header, payload):
        """A frame with its id."""
        if type(header) is self.ended_by and header.request_id is None:
            self.end_received(header)
        else:
            self.session.frame_received(header, payload)

    def end_received(self, header):
        """The broker has ended it; for heirs."""
