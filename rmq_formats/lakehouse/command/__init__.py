"""What ``jobs/export_delta.py`` is made of: its arguments and their values, exports of several stores, its reports."""
