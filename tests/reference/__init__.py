"""Plain models of the formats, which the native code is compared with."""
