"""A server of several processes: real children, real sockets, one data directory."""
