"""Timer messages, transactions and traces of a store as DataFrames."""
