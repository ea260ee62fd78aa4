"""Options of the Spark data sources, checked by name and value, and the schemas that they select from."""
