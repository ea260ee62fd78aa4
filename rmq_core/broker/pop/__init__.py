"""POP: consumers take messages for a time, and acknowledge them one by one; what they do not comes back."""
