"""Each system call that writes fails, tears or kills: a shim below the process."""
