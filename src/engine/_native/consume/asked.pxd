# cython: language_level=3
"""What a cumulative acknowledgement asks for."""
