"""The running system: store engine, remoting, name server, and the command line."""
