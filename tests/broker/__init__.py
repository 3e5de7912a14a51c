"""One broker on real storage, asked frame by frame and over its admin API."""
