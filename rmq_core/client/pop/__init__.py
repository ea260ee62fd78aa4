"""POP at the client: messages are invisible for a time, and acknowledged one by one."""
