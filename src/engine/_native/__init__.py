"""The native core: what is done to every message's bytes. It opens no file and awaits nothing."""
