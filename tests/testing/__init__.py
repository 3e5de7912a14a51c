"""What `engine.testing` promises: its clocks, disks, networks and the history checker."""
