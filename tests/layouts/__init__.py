"""What each tool does with the stores of other layouts: what it reads, and what it refuses."""
