"""Bytes that earlier versions wrote, which every later one reads."""
