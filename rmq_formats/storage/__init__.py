"""Opens a store's files, on local disks and in object stores; no other module of ``rmq_formats`` does."""
