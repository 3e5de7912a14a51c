"""Topics to files and files to topics: `engine export` and `engine import`."""
