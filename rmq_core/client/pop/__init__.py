"""POP at the client: messages are taken for a time, and acknowledged one by one."""
