"""The ConsumeQueues of a broker's store: writes, finds and removes units."""
