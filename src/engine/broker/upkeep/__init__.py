"""Background loops: retention, orphans, idle segments, load reports, checks of a directory. Loop thread only."""
