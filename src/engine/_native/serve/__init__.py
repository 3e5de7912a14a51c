"""What a broker does with entries without opening their bodies: append, scan, dispatch, delay."""
