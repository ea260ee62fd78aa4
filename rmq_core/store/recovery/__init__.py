"""Recovery of a broker's store at start: finds the CommitLog's end, dispatches what is missing, quarantines damage."""
