"""Opens a store's files, on disks and in object stores, and locks them; no other module of ``rmq_formats`` does."""
