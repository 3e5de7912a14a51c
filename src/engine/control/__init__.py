"""The control plane: decides the shape of topics and the assignment of segments to consumers."""
