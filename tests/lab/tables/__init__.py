"""The part ``tables``: exports of a log that changes, into tables that change."""
