"""Changes of a topic's shape: split, merge, rebucket, deletion, and automatic scaling of one topic."""
