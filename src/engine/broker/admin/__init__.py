"""Administration: the admin service, its HTTP API, settings that change at run time. Loop thread only."""
