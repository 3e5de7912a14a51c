"""One client's connection: handshake, commands, answers, liveness."""
