"""The HTML report of a verification: one self-contained page with the findings, for browser and print."""
