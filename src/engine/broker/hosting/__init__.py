"""Which segments are open on this broker, under which term, and what control asks of them."""
