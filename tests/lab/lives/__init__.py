"""The part ``lives``: stores that the original makes, restarts, cuts and leaves as they are."""
