"""What ``jobs/export_delta.py`` is made of: its arguments, exports of several stores, its reports."""
