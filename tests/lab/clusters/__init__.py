"""The part ``clusters``: a master, two slaves, a name server and clients in virtual time."""
