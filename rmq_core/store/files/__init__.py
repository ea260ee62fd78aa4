"""File access of a broker's store: creation, fsync, the store lock, config files, the watermark."""
