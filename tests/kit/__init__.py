"""Fakes and benches that tests share, and how their programs are started."""
