"""The IndexFiles of a broker's store: appends and looks up message keys."""
