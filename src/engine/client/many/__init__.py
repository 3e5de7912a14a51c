"""Consumers of several topics, made of the consumers of one."""
