"""The part ``clusters``: a master, its slave, a name server and a client in virtual time."""
