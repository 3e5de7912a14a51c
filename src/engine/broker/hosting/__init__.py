"""Which segments are open on this broker, under which term, and control's operations on them. Loop thread only."""
