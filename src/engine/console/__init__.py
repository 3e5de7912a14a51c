"""The console: pages about a broker for a browser, served by a process of its own."""
