"""Records, ConsumeQueue units and Index entries as Arrow columns, and rows as records again."""
